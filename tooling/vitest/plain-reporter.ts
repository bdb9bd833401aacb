// Adds `N passed, N failed, N skipped` to vitest's own output, alone on the very last line.
// Continuous integration counts tests in this form.
import type { Reporter, SerializedError, TestCase, TestModule } from 'vitest/node';

/**
 * Counts tests. A file or suite that fails outside its tests counts as failed, and so does a stray
 * error.
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
    // This happens at exit, because vitest's summary and the output of its workers come after this
    // call.
    process.on('exit', (code) => {
      // A run that failed for another reason (no test files, a coverage threshold) has to show that
      // too.
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
