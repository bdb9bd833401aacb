// docs/parity.md names tests by file and title. This check keeps those names true.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { titlesIn } from './test-titles.ts';
import { ROOT } from './workspace.ts';

const NAMED = /\[[\w./-]+\]\(\.\.\/([\w./-]+\.test\.ts)\): ((?:"[^"]+"(?:, )?)+)/g;

it('docs/parity.md names tests that are there', () => {
  const text = readFileSync(join(ROOT, 'docs/parity.md'), 'utf8');
  const named = [...text.matchAll(NAMED)].flatMap(([, path, titles]) =>
    [...titles!.matchAll(/"([^"]+)"/g)].map(([, title]) => ({ path: path!, title: title! })),
  );
  expect(named.length).toBeGreaterThan(90);
  const paths = [...new Set(named.map(({ path }) => path))];
  const titles = new Map(
    paths.map((path) => [path, new Set(titlesIn(path).map(({ title }) => title))]),
  );
  expect(named.filter(({ path, title }) => !titles.get(path)!.has(title))).toEqual([]);
});
