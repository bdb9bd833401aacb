// Fails a test that prints by console.*, which libraries never do. A test that expects output
// catches it with a spy. This is loaded before every test file.
import { afterEach, beforeEach, expect } from 'vitest';

const METHODS = ['debug', 'error', 'info', 'log', 'warn'] as const;

const printed: string[] = [];
const originals = METHODS.map((method) => [method, console[method]] as const);

beforeEach(() => {
  printed.length = 0;
  for (const [method, original] of originals) {
    console[method] = (...args: unknown[]) => {
      printed.push(`console.${method}: ${args.map(String).join(' ')}`);
      original(...args);
    };
  }
});

afterEach(() => {
  for (const [method, original] of originals) {
    console[method] = original;
  }
  expect(printed, 'a test printed; one that expects output catches it with a spy').toEqual([]);
});
