// Weights have one hash everywhere (docs/numerics.md), so nothing between data and weights may be
// the engine's or the locale's own: no Math.cos, no `**` of variables, no localeCompare.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { leaksIn } from './leaks.ts';
import { ROOT, sourceFiles, workspacePackages } from './workspace.ts';

/** Where an engine's own functions do no harm, and why. */
const FREE = {
  'packages/tensor-core/src/backends/reference/': 'the independent truth that kernels are held to',
  'packages/tensor-core/src/testing/': 'truths and tolerances of the kernel suite',
  'packages/collectives/src/testing/': 'simulated networks',
  'apps/trainer/src/page/': 'plots and sorted tables, for eyes alone',
};

const paths = workspacePackages().flatMap(sourceFiles);
const isFree = (path: string) => Object.keys(FREE).some((folder) => path.startsWith(folder));
const leaksOf = (path: string) =>
  leaksIn(readFileSync(join(ROOT, path), 'utf8')).map((leak) => `${path}: ${leak}`);

it('no engine and no locale decides anything in the packages and the trainer', () => {
  const found = paths.filter((path) => !isFree(path)).flatMap(leaksOf);
  expect(found, 'Take exp64, log64, pow64 or cosPi64 of @shardweave/dtypes/float64.').toEqual([]);
});

it.each(Object.keys(FREE))('%s needs to be free', (folder) => {
  expect(paths.filter((path) => path.startsWith(folder)).some((path) => leaksOf(path)[0])).toBe(
    true,
  );
});

it.each([
  ['Math.cos(x)', 'Math.cos'],
  ['Math.random()', 'Math.random'],
  ['values.map(Math.log)', 'Math.log'],
  ['const { exp } = Math;', 'Math in { exp } = Math'],
  ["Math['pow'](2, x)", "Math in Math['pow']"],
  ['1 - beta ** step', 'beta ** step'],
  ['2 ** level', '2 ** level'],
  ['EPSILON ** 2', 'EPSILON ** 2'],
  ['10 ** 0.5', '10 ** 0.5'],
  ['x1 ** 2', 'x1 ** 2'],
  ['x **= 2', 'x **= 2'],
  ['names.sort((a, b) => a.localeCompare(b))', 'localeCompare'],
  ["names.sort(new Intl.Collator('en').compare)", 'Intl'],
])('%s is a leak', (code, leak) => {
  expect(leaksIn(code)).toEqual([`line 1: ${leak}`]);
});

it.each([
  'Math.sqrt(x) + Math.fround(y) + Math.PI',
  '2 ** 20 + 2 ** -126 + 2 ** (TABLE_BITS - NORMAL_BITS - 1)',
  '// Math.cos and x ** y',
  "'**/*.json'",
  'names.sort()',
])('%s is none', (code) => {
  expect(leaksIn(code)).toEqual([]);
});
