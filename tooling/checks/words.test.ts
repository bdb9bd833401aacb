// How comments, names and titles of tests read, as far as a check can tell. No comment begins with
// a bare "Of", and no line of one is wider than 100. A lambda's parameter says what it is. A title
// begins with what it is about, or with a verb of what its describe or file names: a failing line
// and `-t` may show it alone.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { type TestTitle, titlesIn } from './test-titles.ts';
import { ROOT, trackedFiles } from './workspace.ts';

const COMMENT = /^\s*(?:\/\/|\/?\*{1,2})/;
const BARE_OF = /^\s*(?:\/\/|\/?\*{1,2})\s*Of\b/;
const MAX_WIDTH = 100;
/** Finds the beginning of a title that goes on with a sentence which it has not begun. */
const GOES_ON =
  /^(?:and|but|or|also|again|that|which|who|whose|where|when|while|if|as|than|of|to|from|in|into|on|by|for|with|without|within|over|under|at|after|before|during|between|beside|behind|around|inside|outside|its|their|it|they)[ ,:]/;
/** Finds numbers of items in a list that is not in the tree, such as F20, A1 or 2.5.7. */
const NUMBERED = /^(?:[FAO]\d+|\d\.\d+(?:\.\d+)?)\b[: ]?(?!\s*(?:GB|MB|billion))/;
/** Finds a lambda's parameter that does not say what it is. */
const NAMELESS = /[([,] ?(?:one|each|told)(?:[,\]:][^()]*)?\) =>/;

/** The lines that break a rule, as `file:line`. */
function linesWith(isBroken: (line: string, path: string) => boolean): readonly string[] {
  return trackedFiles()
    .filter((path) => /\.(?:ts|tsx|js|mjs|cjs)$/.test(path))
    .toSorted()
    .flatMap((path) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .flatMap((line, i) => (isBroken(line, path) ? [`${path}:${i + 1}`] : [])),
    );
}

it('has no comment that begins with a bare "Of"', () => {
  expect(linesWith((line) => BARE_OF.test(line))).toEqual([]);
});

it('has no comment line wider than 100', () => {
  expect(linesWith((line) => COMMENT.test(line) && line.length > MAX_WIDTH)).toEqual([]);
});

it('says by the name of each parameter of a lambda in src what it is', () => {
  expect(linesWith((line, path) => /\/src\//.test(path) && NAMELESS.test(line))).toEqual([]);
});

describe('titles of tests', () => {
  const titles = trackedFiles()
    .filter((path) => path.endsWith('.test.ts'))
    .flatMap((path) => titlesIn(path).map((title) => ({ path, ...title })));
  const linesOf = (isBroken: (title: TestTitle) => boolean): readonly string[] =>
    titles.filter(isBroken).map(({ path, title }) => `${path}: ${title}`);

  it('carry no numbers of a list', () => {
    expect(linesOf(({ title }) => NUMBERED.test(title))).toEqual([]);
  });

  it('begin with what they are about, or with a verb', () => {
    const isTest = ({ call }: TestTitle): boolean => call !== 'describe';
    const broken = linesOf((title) => isTest(title) && GOES_ON.test(title.title));
    expect(titles.filter(isTest).length).toBeGreaterThan(2500);
    expect(broken, 'Put what the test is about first: "a lost device ends the run".').toEqual([]);
  });
});
