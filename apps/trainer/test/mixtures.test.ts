// A mixture by weights: its rows are those of its parts, each as often as its weight says, and they
// depend on seed and step alone.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { Dataset } from '../src/data/dataset.js';
import { MixedOrder } from '../src/data/mixed-rows.js';
import { NO_TARGET } from '../src/data/rows.js';
import { configOf, jsonlFile, openFlags } from './support/jsonl-data.js';
import { runCli } from './support/run-cli.js';
import { worstRatio } from './support/run-flags.js';
import { lossesOf, runLine, tinyFlags } from './support/tiny-run.js';

const folder = newFolder();
const written = (name: string, bytes: Buffer | string) => {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
};
/** A text of so many rows of 8 tokens, each of which begins with the letter and its own number. */
const rowsOf = (letter: string, count: number) =>
  `${Array.from({ length: count }, (_, i) => `${letter}${String(i).padStart(6, '0')} `).join('')}.`;

const A = written('a.txt', rowsOf('a', 90));
const B = written('b.txt.gz', gzipSync(rowsOf('b', 40)));
const C = written('c.txt', rowsOf('c', 200));
const SHARES = { a: 0.5, b: 0.3, c: 0.2 };
const MIXED = `--model nano --tokenizer byte --data ${A}:0.5,${B}:0.3,${C}:0.2 --seq 8`;

/** The rows of a step over all ranks and micro-steps, in order, as text. */
async function stepOf(data: Dataset, step: number, ranks: number): Promise<string[]> {
  const rows: string[] = [];
  for (let rank = 0; rank < ranks; rank++) {
    for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
      const { tokens, rows: count } = await data.microBatch(step, rank, microStep);
      for (let row = 0; row < count; row++) {
        rows.push(Buffer.from(tokens.slice(8 * row, 8 * row + 7)).toString());
      }
    }
  }
  return rows;
}

describe('the order of rows', () => {
  it('takes the part that lags most, the first of several', () => {
    const order = new MixedOrder([0.7, 0.3]);
    const places = Array.from({ length: 10 }, (_, i) => order.at(i));
    expect(places.map(({ part }) => part)).toEqual([0, 1, 0, 0, 0, 1, 0, 0, 1, 0]);
    expect(places.map(({ row }) => row)).toEqual([0, 0, 1, 2, 3, 1, 4, 5, 2, 6]);
  });

  it('gives each part its share at any time, to less than two rows, from wherever it is asked', () => {
    fc.assert(
      fc.property(
        fc.array(fc.double({ min: 0.01, max: 1, noNaN: true }), { minLength: 1, maxLength: 6 }),
        fc.array(fc.nat({ max: 9000 }), { maxLength: 4 }),
        (weights, asked) => {
          const sum = weights.reduce((all, weight) => all + weight, 0);
          const shares = weights.map((weight) => weight / sum);
          const order = new MixedOrder(shares);
          const counts = shares.map(() => 0);
          const places = Array.from({ length: 500 }, (_, i) => order.at(i));
          for (const [i, { part, row }] of places.entries()) {
            expect(row).toBe(counts[part]!++);
            expect(Math.abs(counts[part]! - shares[part]! * (i + 1))).toBeLessThan(2);
          }
          for (const index of [...asked, 499, 7]) {
            expect(order.at(index)).toEqual(new MixedOrder(shares).at(index));
          }
        },
      ),
      { numRuns: 40 },
    );
  });
});

describe('a mixture of three files, one of them compressed', () => {
  it('has rows of each by its weight, and each of its rows once in its own epoch', async () => {
    await using data = await openFlags(`${MIXED} --batch 7 --ranks 1`);
    const found: Record<string, string[]> = { a: [], b: [], c: [] };
    for (let step = 0; step < 40; step++) {
      for (const row of await stepOf(data.train, step, 1)) {
        found[row[0]!]!.push(row);
      }
      for (const [part, share] of Object.entries(SHARES)) {
        expect(Math.abs(found[part]!.length - share * 7 * (step + 1))).toBeLessThan(1);
      }
    }
    expect(found).toMatchObject({ a: { length: 140 }, b: { length: 84 }, c: { length: 56 } });
    for (const [part, rows] of [
      ['a', 90],
      ['b', 40],
    ] as const) {
      expect(new Set(found[part]!.slice(0, rows)).size).toBe(rows);
    }
    expect(found.b!.slice(0, 40)).not.toEqual(found.b!.slice(40, 80)); // in another order
  });

  it('has the same rows at any world size, and other ones by another seed', async () => {
    const rowsAt = async (ranks: number, more = '') => {
      await using data = await openFlags(`${MIXED} --batch 12 --ranks ${ranks}${more}`);
      return [await stepOf(data.train, 31, ranks), await stepOf(data.train, 2, ranks)];
    };
    const alone = await rowsAt(1);
    expect(alone.flat()).toHaveLength(24);
    expect(await rowsAt(2)).toEqual(alone);
    expect(await rowsAt(3, ' --grad-accum 3')).toEqual(alone);
    const other = await rowsAt(1, ' --seed 2');
    expect(other).not.toEqual(alone);
    const parts = (rows: string[][]) => rows.map((step) => step.map((row) => row[0]));
    expect(parts(other)).toEqual(parts(alone));
  });

  it('has an epoch that ends with the part that ends first', async () => {
    // The last of b's 40 rows is one of the first 134 rows, of which it has 0.3.
    const { steps } = await configOf(`${MIXED} --epochs 2 --batch 10`);
    await using data = await openFlags(`${MIXED} --ranks 1 --batch 10`);
    const { rows, parts, files, tokens } = data.train.size;
    expect(rows).toBeGreaterThan(130);
    expect(rows).toBeLessThan(137);
    expect({ files, tokens }).toEqual({ files: 3, tokens: 8 * 330 + 3 });
    expect(parts!.map((part) => [part.name, part.share, part.rows])).toEqual([
      [A, 0.5, 90],
      [B, 0.3, 40],
      [C, 0.2, 200],
    ]);
    expect(steps).toBe(Math.ceil((2 * rows) / 10));
    const all = [];
    for (let step = 0; step < Math.ceil(rows / 10); step++) {
      all.push(...(await stepOf(data.train, step, 1)));
    }
    expect(new Set(all.slice(0, rows)).size).toBe(rows);
    expect(all[rows] === undefined || all[rows]!.startsWith('b')).toBe(true);
  });

  it('is evaluated by its weights, on files or on a part of each', async () => {
    await using data = await openFlags(`${MIXED} --ranks 1 --batch 10 --valid ${C}:1,${A}:3`);
    const first = await stepOf(data.valid!, 0, 1);
    expect(first.map((row) => row[0]).join('')).toBe('acaaacaaac');
    expect(first[0]).toBe('a000000');
    await using cut = await openFlags(`${MIXED} --ranks 1 --batch 10 --valid-fraction 0.5`);
    const [train, valid] = [cut.train.size, cut.valid!.size];
    expect(train.parts!.map(({ rows }) => rows)).toEqual([44, 19, 99]);
    expect(valid.parts!.map(({ rows }) => rows)).toEqual([45, 20, 100]);
    const apart = await stepOf(cut.valid!, 0, 1);
    expect(Math.min(...apart.map((row) => Number(row.slice(1)) || 99))).toBeGreaterThan(19);
  });

  it('trains equally on 1, 2 and 3 ranks, and resumed on another number of them', async () => {
    const flags = `${tinyFlags(newFolder())} --data ${A}:0.5 ${B}:0.3 ${C}:0.2`;
    const line = (ranks: number, more: string) =>
      runLine(`${flags} --strategy fsdp --ranks ${ranks} --schedule constant ${more}`);
    const out = newFolder();
    const alone = lossesOf(await line(1, '--steps 5'));
    await line(2, `--steps 3 --save-every 3 --out ${join(out, 'run')}`);
    const resumed = await line(3, `--steps 5 --resume auto --out ${join(out, 'run')}`);
    expect(worstRatio(lossesOf(await line(3, '--steps 5')), alone)).toBeLessThan(2e-6);
    expect(resumed.resumed?.step).toBe(3);
    expect(worstRatio(lossesOf(resumed), alone.slice(3))).toBeLessThan(2e-6);
    const other = flags.replace(':0.3', ':0.4');
    await expect(
      runLine(`${other} --steps 5 --resume auto --out ${join(out, 'run')} --ranks 1`),
    ).rejects.toThrow(/was saved with another data: .*a\.txt:0\.5,.*got .*b\.txt\.gz:0\.4/);
    const { out: text } = await runCli(['inspect', join(out, 'run/saves/step-000003')]);
    expect(text).toContain(`data     ${A}:0.5,${B}:0.3,${C}:0.2\n`);
  });
});

it('a text beside documents is mixed row by row, each a document of its own', async () => {
  const { file, model } = jsonlFile(Array.from({ length: 9 }, () => ({ text: 'ab' })));
  const flags = `--model ${model} --seq 8 --batch 4 --order sequential --train-on-prompt`;
  await using data = await openFlags(`${flags} --data ${file}:1,${A}:1`);
  const { tokens, targets, segments, positions } = await data.train.microBatch(0, 0, 0);
  const row = (of: Uint32Array | undefined, i: number) => [...of!.slice(8 * i, 8 * i + 8)];
  expect(row(segments, 1)).toEqual([0, 0, 0, 0, 0, 0, 0, 0]);
  expect(row(positions, 1)).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  expect(row(targets, 1).slice(0, 7)).toEqual(row(tokens, 1).slice(1));
  expect(Math.max(...row(segments, 0))).toBeGreaterThan(1);
  expect(row(targets, 0)).not.toContain(NO_TARGET - 1);
  expect(await data.train.numTargets(0)).toBeGreaterThan(24);
});

it.each([
  [
    '--task classify',
    /a mixture by weights is for --task lm, got --task classify\. Leave the weights/,
  ],
])('is for text alone: %s', async (flags, says) => {
  const { file } = jsonlFile([{ text: 'a', label: 'b' }]);
  await expect(configOf(`${flags} --data ${file}:1,${file}:2 --epochs 1`)).rejects.toThrow(says);
});

it('embed takes each text once, and so no weights', async () => {
  const { code, err } = await runCli(['embed', '--model', folder, '--data', `${A}:1,${C}:2`]);
  expect({ code, err }).toEqual({ code: 2, err: expect.stringContaining('error: ') });
});

it('a run is not resumed on a folder that has gained a file, and is told which', async () => {
  const [data, out] = [newFolder(), join(newFolder(), 'run')];
  writeFileSync(join(data, 'a.txt'), 'Call me Ishmael. '.repeat(99));
  const line = `${tinyFlags(newFolder())} --data ${data} --strategy single --out ${out} --save-every 1`;
  await runLine(`${line} --steps 1`);
  writeFileSync(join(data, 'b.txt'), 'Some years ago. '.repeat(99));
  await expect(runLine(`${line} --steps 2 --resume auto`)).rejects.toThrow(
    /saved with other data: .* has changed since\. New or changed: \S+\/b\.txt\. .*--init-from/,
  );
});
