// Adds to vitest's own output which files took longest, and `N passed, N failed, N skipped`, alone
// on the very last line. Continuous integration counts tests in this form.
import type { Reporter, SerializedError, TestCase, TestModule, Vitest } from 'vitest/node';

/** Who looks for time finds most of it in so many files. */
const MOST_FILES = 10;

/**
 * Counts tests, and tells which files took longest where more than ten ran. A file or suite that
 * fails outside its tests counts as failed, and so does a stray error, or a name that is asked for
 * and that no test has.
 */
export class PlainReporter implements Reporter {
  #vitest: Vitest | undefined;

  onInit(vitest: Vitest): void {
    this.#vitest = vitest;
  }

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
    const name = this.#vitest?.config.testNamePattern;
    if (name !== undefined && count.passed + count.failed === 0) {
      console.error(
        `expected a test whose name matches ${name}, got none in the files that ran. Check what follows -t.`,
      );
      process.exitCode = 1;
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
      process.stdout.write(longestText(modules));
      process.stdout.write(`${passed} passed, ${failed} failed, ${skipped} skipped\n`);
    });
  }
}

function stateOf(test: TestCase): 'passed' | 'failed' | 'skipped' {
  const { state } = test.result();
  return state === 'pending' ? 'skipped' : state;
}

type Timed = Pick<TestModule, 'relativeModuleId'> & {
  diagnostic(): Pick<ReturnType<TestModule['diagnostic']>, 'collectDuration' | 'duration'>;
};

/** The longest files, a line each, such as `   61.3 s  packages/fsdp/test/saves.test.ts`. */
export function longestText(modules: readonly Timed[]): string {
  const times = modules.map((module) => {
    const { collectDuration, duration } = module.diagnostic();
    return { name: module.relativeModuleId, ms: collectDuration + duration };
  });
  if (times.length <= MOST_FILES) {
    return '';
  }
  const all = times.reduce((sum, { ms }) => sum + ms, 0);
  const longest = times.toSorted((a, b) => b.ms - a.ms).slice(0, MOST_FILES);
  const lines = longest.map(({ name, ms }) => `${seconds(ms)}  ${name}\n`);
  return [`${seconds(all)}  all ${times.length} files\n`, ...lines].join('');
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(1).padStart(7)} s`;
}
