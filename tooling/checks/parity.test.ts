// docs/parity.md names tests by file and title. This check keeps those names true.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ROOT, trackedFiles } from './workspace.ts';

const NAMED = /\[[\w./-]+\]\(\.\.\/([\w./-]+\.test\.ts)\): ((?:"[^"]+"(?:, )?)+)/g;
const TITLE = /(?:\b(?:it|describe)(?:\.\w+)?|\))\(\s*(['"`])(.*?)\1,/gs;
/** Finds numbers of items in a list that is not in the tree, such as F20, A1 or 2.5.7. */
const NUMBERED = /^(?:[FAO]\d+|\d\.\d+(?:\.\d+)?)\b[: ]?(?!\s*(?:GB|MB|billion))/;

it('docs/parity.md names tests that are there', () => {
  const text = readFileSync(join(ROOT, 'docs/parity.md'), 'utf8');
  const named = [...text.matchAll(NAMED)].flatMap(([, path, titles]) =>
    [...titles!.matchAll(/"([^"]+)"/g)].map(([, title]) => ({ path: path!, title: title! })),
  );
  expect(named.length).toBeGreaterThan(90);
  expect(named.filter(({ path, title }) => !titlesIn(path).includes(title))).toEqual([]);
});

it('titles of tests are sentences, and carry no numbers of a list', () => {
  const numbered = trackedFiles()
    .filter((path) => path.endsWith('.test.ts'))
    .flatMap((path) =>
      titlesIn(path)
        .filter((title) => NUMBERED.test(title))
        .map((title) => `${path}: ${title}`),
    );
  expect(numbered).toEqual([]);
});

function titlesIn(path: string): readonly string[] {
  const source = readFileSync(join(ROOT, path), 'utf8');
  return [...source.matchAll(TITLE)].map((match) => match[2]!);
}
