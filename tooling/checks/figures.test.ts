// Figures of speed and memory in READMEs and documents are rendered from reports and never written
// by hand.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { BLOCKS } from '../../bench/figures/blocks.mjs';
import { blocksIn, readmePaths, rendered, withoutFigures } from '../../bench/figures/readmes.mjs';
import { ROOT } from './workspace.ts';

/**
 * Patterns that find claims of a measurement. Settings, such as a time-out or a share of a limit,
 * are worded differently.
 */
const CLAIMS = [
  /\d[\d.,]* ?(?:[GT]FLOPS?(?:\/s| a second| per)|[KMG]i?B\/s|[KMG]i?B a second|tok\/s|tokens a second)/,
  /\d[\d.,]* ?(?:times|x) (?:as )?(?:fast|slow|quick|less time|the time|that of)/,
  /\d[\d.,]* of the time\b/,
  /\d[\d.,]* ?% (?:faster|slower|of the (?:delay|time)|hidden|is hidden)/,
  /\d[\d.,]* times (?:faster|slower)/,
  /\| *[\d.,]+ times *\|/,
  /\| *measured *\|/,
];

const texts = readmePaths().map((path) => [path, readFileSync(join(ROOT, path), 'utf8')] as const);

describe.each(texts)('%s', (path, text) => {
  it('has its figures as the newest reports have them', () => {
    expect(rendered(path, text)).toBe(text);
  });

  it('closes every block of figures that it opens', () => {
    expect(withoutFigures(text)).not.toMatch(/^<!-- \/?figures/m);
  });

  it('claims no speed outside of them', () => {
    const prose = withoutFigures(text).replaceAll(/^```[\s\S]*?^```/gm, '');
    const claims = prose.split('\n').filter((line) => CLAIMS.some((claim) => claim.test(line)));
    expect(claims).toEqual([]);
  });
});

it('a figure that was changed by hand is found', () => {
  const [path, text] = texts.find(([, candidate]) => blocksIn(candidate).length > 0)!;
  const end = text.lastIndexOf('<!-- /figures -->');
  const edited = text.slice(0, end).replace(/\d(?=\D*$)/, (digit) => `${(Number(digit) + 1) % 10}`);
  expect(edited).not.toBe(text.slice(0, end));
  expect(rendered(path, edited + text.slice(end))).toBe(text);
});

it('the size of the WebAssembly is that of the build, within 5 %', () => {
  const [, size] = /are some (\d+) kB of WebAssembly/.exec(
    readFileSync(join(ROOT, 'README.md'), 'utf8'),
  )!;
  const built = readFileSync(join(ROOT, 'packages/tensor-core/src/generated/cpu-plain.ts'), 'utf8');
  const [, base64] = /'([A-Za-z0-9+/=]{1000,})'/.exec(built)!;
  expect(Number(size) / (Buffer.from(base64!, 'base64').byteLength / 1000)).toBeCloseTo(1, 1);
});

it('every block stands in one place', () => {
  const found = texts.flatMap(([, text]) => blocksIn(text));
  expect([...found].sort()).toEqual(Object.keys(BLOCKS).sort());
});
