// Vitest's own output stays as it is; this adds `N passed, N failed, N skipped`, alone on the very
// last line, which is the form that continuous integration counts.
import type { Reporter, SerializedError, TestCase, TestModule } from 'vitest/node';

/**
 * Counts tests; a file or suite that failed outside its tests, and a stray error, count as failed.
 */
export class PlainReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    const count = { passed: 0, failed: unhandled.length, skipped: 0 };
    for (const module of modules) {
      count.failed += module.errors().length;
      for (const suite of module.children.allSuites()) {
        count.failed += suite.errors().length;
      }
      for (const test of module.children.allTests()) {
        count[stateOf(test)] += 1;
      }
    }
    // At exit, for vitest's summary and whatever its workers leave behind come after this call.
    process.on('exit', (code) => {
      // A run that failed for another reason (no test files, a coverage threshold) says so too.
      if (code !== 0 && count.failed === 0) {
        count.failed = 1;
      }
      const { passed, failed, skipped } = count;
      process.stdout.write(`${passed} passed, ${failed} failed, ${skipped} skipped\n`);
    });
  }
}

function stateOf(test: TestCase): 'passed' | 'failed' | 'skipped' {
  const { state } = test.result();
  return state === 'pending' ? 'skipped' : state;
}
