// Runs the examples in docstrings and READMEs and compares what they log with what their comments
// say: `// logs 3`. An example without such a comment needs more than it contains, so only its
// types are checked (public-api.test.ts).
import { format } from 'node:util';
import { afterAll, expect, it, vi } from 'vitest';
import { DocExamples, LOGS } from './doc-examples.ts';

const examples = new DocExamples();
afterAll(() => examples.remove());

const runnable = examples.all.filter(({ code }) => code.match(LOGS) !== null);

it.each(runnable)('logs what the example of $place says', async ({ path, code }) => {
  const logged: string[] = [];
  const log = vi
    .spyOn(console, 'log')
    .mockImplementation((...values) => void logged.push(format(...values)));
  try {
    await import(/* @vite-ignore */ path);
  } finally {
    log.mockRestore();
  }
  expect(logged).toEqual([...code.matchAll(LOGS)].map((match) => match[1]));
});
