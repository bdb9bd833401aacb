// The weights of small trainings have one hash everywhere: in this process, whose own functions are
// spoiled, in Chromium, and on every machine that runs this. `npm run one-hash` asks all engines.
import { afterEach, describe, expect, it, vi } from 'vitest';
import { chromiumPath } from '../browser/launch-chromium.ts';
import { chromiumEngines } from './engines.mjs';
import { type Hashes, HashTable } from './hash-table.mjs';
import hashes from './hashes.json' with { type: 'json' };
import { PROGRAMS } from './program/programs.ts';
import { type Outcome, runOrder } from './program/run-order.ts';

const LIMIT_MS = 240_000; // of what takes two seconds on an idle core

/** One that sums over three ranks and one over a base in blocks; the long tests run all. */
const programs =
  process.env.SHARDWEAVE_LONG === '1' ? PROGRAMS : PROGRAMS.filter((_, i) => i % 3 === 0);

const { path, reason } = await chromiumPath();

/** What ECMAScript leaves to an engine. */
const INEXACT = [
  'sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh',
  'exp expm1 log log2 log10 log1p pow cbrt hypot random',
].flatMap((names) => names.split(' ')) as Extract<keyof Math, string>[];

function expectPinned(outcomes: readonly Outcome[]) {
  const table = new HashTable(hashes);
  table.add('this engine', outcomes);
  expect(
    table.faults,
    'If bits were meant to change, raise KERNEL_VERSIONS.cpu where a kernel gives them, and run `npm run one-hash -- --update`.',
  ).toEqual([]);
  expect(Object.keys(table.hashes), 'a class that hashes.json does not have').toEqual(
    Object.keys(hashes),
  );
}

describe('the hash of the weights', () => {
  afterEach(() => {
    vi.restoreAllMocks();
  });

  it('is that of an engine whose own functions give nonsense', { timeout: LIMIT_MS }, async () => {
    for (const name of INEXACT) {
      vi.spyOn(Math, name as 'cos').mockReturnValue(0.75);
    }
    vi.spyOn(String.prototype, 'localeCompare').mockReturnValue(-1);
    expect([Math.cos(0), 'a'.localeCompare('a')]).toEqual([0.75, -1]);
    expectPinned(await runOrder({ programs, threads: [0], fused: [true] }));
  });

  it.skipIf(path === undefined)(
    `is the same in headless Chromium${reason && ` (${reason})`}`,
    { timeout: LIMIT_MS },
    async () => {
      const [, worker] = chromiumEngines();
      const order = { programs: programs.slice(0, 1), threads: [2], fused: [true] };
      expectPinned(await worker!.run(order));
    },
  );
});

describe('the table', () => {
  const numericClass = 'cpu kernels 6 for fused products, bits 0';
  const program = PROGRAMS[0]!;
  const outcome = (hash: string, threads = 0): Outcome => ({
    program,
    threads,
    numericClass,
    hash,
  });

  it('names an engine that parts from the others', () => {
    const table = new HashTable({});
    table.add('Node', [outcome('aa'), outcome('aa', 2)]);
    const [line] = table.add('Bun', [outcome('aa'), outcome('bb', 2)]);
    expect(line).toMatch(/^Bun +threads 0 2 +fused +aa or bb$/);
    expect(table.faults).toEqual([
      `Bun with 2 threads, ${numericClass}, ${program}: expected aa, got bb.`,
    ]);
  });

  it('holds all engines to the hashes that are expected', () => {
    const expected: Hashes = { [numericClass]: { [program]: 'cc' } };
    const table = new HashTable(expected);
    table.add('Node', [outcome('aa')]);
    expect(table.faults).toHaveLength(1);
    expect(table.hashes).toEqual(expected);
  });
});
