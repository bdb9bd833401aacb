// The last line that a real vitest process prints, for runs that end in different ways.
import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { longestText } from './plain-reporter.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const reporter = fileURLToPath(new URL('plain-reporter.ts', import.meta.url));
const root = fileURLToPath(new URL('../../', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'shardweave-reporter-'));
afterAll(() => rmSync(folder, { recursive: true }));

/**
 * Runs one test file in a process of its own. Returns the last line of its output and its exit
 * code.
 */
async function runFile(name: string, body: string, ...args: readonly string[]) {
  const project = mkdtempSync(join(folder, 'run-'));
  writeFileSync(join(project, `${name}.test.js`), body);
  writeFileSync(
    join(project, 'vitest.config.ts'),
    `import { PlainReporter } from ${JSON.stringify(reporter)};
     export default { test: { globals: true, reporters: ['default', new PlainReporter()] } };`,
  );
  const vitest = join(root, 'node_modules/vitest/vitest.mjs');
  return new Promise<{ code: number; lastLine: string }>((resolve) => {
    execFile(process.execPath, [vitest, 'run', ...args], { cwd: project }, (error, stdout) => {
      const lastLine = stdout.trimEnd().split('\n').at(-1) ?? '';
      resolve({ code: error ? Number(error.code) : 0, lastLine });
    });
  });
}

describe('the closing line', () => {
  it('counts passed, failed and skipped tests, and the exit code is a failure', async () => {
    // The skip and the todo are there to be counted. This is the text of the file that the test
    // runs.
    const body = `
      it('a', () => {}); it('b', () => {}); it.skip('c', () => {}); it.todo('d');
      it('e', () => { throw new Error('on purpose'); });`;
    const { code, lastLine } = await runFile('mixed', body);
    expect({ code, lastLine }).toEqual({ code: 1, lastLine: '2 passed, 1 failed, 2 skipped' });
  });

  // In the short run an error outside of tests is below.
  it.runIf(isLong)('counts a file that does not load as failed', async () => {
    const { code, lastLine } = await runFile('broken', `throw new Error('on purpose');`);
    expect({ code, lastLine }).toEqual({ code: 1, lastLine: '0 passed, 1 failed, 0 skipped' });
  });

  it('counts a hook that throws and an error outside of tests as failed', async () => {
    const body = `
      describe('x', () => {
        beforeAll(() => { throw new Error('on purpose'); });
        it('a', () => {});
      });
      it('b', async () => {
        setTimeout(() => { throw new Error('stray, on purpose'); }, 0);
        await new Promise((resolve) => setTimeout(resolve, 50));
      });`;
    const { code, lastLine } = await runFile('stray', body);
    expect({ code, lastLine }).toEqual({ code: 1, lastLine: '1 passed, 2 failed, 1 skipped' });
  });

  it('counts a name that no test has as failed', async () => {
    const { code, lastLine } = await runFile('named', `it('a', () => {});`, '-t', 'b');
    expect({ code, lastLine }).toEqual({ code: 1, lastLine: '0 passed, 1 failed, 1 skipped' });
  });

  it.runIf(isLong)('says 0 failed, with exit code 0, when everything passes', async () => {
    const { code, lastLine } = await runFile('fine', `it('a', () => {});`);
    expect({ code, lastLine }).toEqual({ code: 0, lastLine: '1 passed, 0 failed, 0 skipped' });
  });
});

it('the ten files that took longest are told, the longest first', () => {
  const modules = Array.from({ length: 11 }, (_, i) => ({
    relativeModuleId: `file-${i}.test.ts`,
    diagnostic: () => ({ collectDuration: 100 * i, duration: 1000 * i }),
  }));
  expect(longestText(modules)).toBe(
    [
      '   60.5 s  all 11 files',
      ...[10, 9, 8, 7, 6, 5, 4, 3, 2, 1].map(
        (i) => `${(1.1 * i).toFixed(1).padStart(7)} s  file-${i}.test.ts`,
      ),
      '',
    ].join('\n'),
  );
  expect(longestText(modules.slice(1)), 'of ten files vitest itself tells').toBe('');
});
