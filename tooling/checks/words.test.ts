// How comments read, as far as a check can tell: no bare "Of" begins one, and no line is wider than
// 100.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ROOT, trackedFiles } from './workspace.ts';

const COMMENT = /^\s*(?:\/\/|\/?\*{1,2})/;
const BARE_OF = /^\s*(?:\/\/|\/?\*{1,2})\s*Of\b/;
const MAX_WIDTH = 100;

/** The files with a comment line that breaks a rule. */
function filesWith(isBroken: (line: string) => boolean): readonly string[] {
  return trackedFiles()
    .filter((path) => /\.(?:ts|tsx|js|mjs|cjs)$/.test(path))
    .filter((path) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .some((line) => COMMENT.test(line) && isBroken(line)),
    )
    .toSorted();
}

it('has no comment that begins with a bare "Of"', () => {
  expect(filesWith((line) => BARE_OF.test(line))).toEqual([]);
});

it('has no comment line wider than 100', () => {
  expect(filesWith((line) => line.length > MAX_WIDTH)).toEqual([]);
});
