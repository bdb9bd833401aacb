// How comments read, as far as a check can tell: none begins with a bare "Of", and no line is wider
// than 100.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { ROOT, trackedFiles } from './workspace.ts';

const COMMENT = /^\s*(?:\/\/|\/?\*{1,2})/;
const BARE_OF = /^\s*(?:\/\/|\/?\*{1,2})\s*Of\b/;
const MAX_WIDTH = 100;

/** The comment lines that break a rule, as `file:line`. */
function linesWith(isBroken: (line: string) => boolean): readonly string[] {
  return trackedFiles()
    .filter((path) => /\.(?:ts|tsx|js|mjs|cjs)$/.test(path))
    .toSorted()
    .flatMap((path) =>
      readFileSync(join(ROOT, path), 'utf8')
        .split('\n')
        .flatMap((line, i) => (COMMENT.test(line) && isBroken(line) ? [`${path}:${i + 1}`] : [])),
    );
}

it('has no comment that begins with a bare "Of"', () => {
  expect(linesWith((line) => BARE_OF.test(line))).toEqual([]);
});

it('has no comment line wider than 100', () => {
  expect(linesWith((line) => line.length > MAX_WIDTH)).toEqual([]);
});
