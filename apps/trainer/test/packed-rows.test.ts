// Packed rows of documents are compared with a simple way to pack them, and so is what a model
// computes from such rows.

import { makeModel } from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Dataset } from '../src/data/dataset.js';
import { permute } from '../src/data/row-order.js';
import { NO_TARGET } from '../src/data/rows.js';
import { languageConfig } from '../src/task/text-config.js';
import { configOf, jsonlFile, openFlags } from './support/jsonl-data.js';
import { LETTERS, lettersDirectory } from './support/letters-tokenizer.js';
import { worstRatio } from './support/run-flags.js';
import { trainOn } from './support/train-on.js';

const END = LETTERS.end.id;
const NO = NO_TARGET;
const bytes = (text: string) => [...new TextEncoder().encode(text)];

interface Pair {
  readonly prompt: string;
  readonly completion: string;
}

/** One token of a row. */
type Place = readonly [token: number, target: number, segment: number, position: number];

/** Returns everything that a document teaches, with one entry for each token. */
function placesOf({ prompt, completion }: Pair, trainOnPrompt: boolean) {
  const tokens = [...bytes(prompt + completion), END];
  return tokens.slice(0, -1).map((token, i) => {
    const counts = trainOnPrompt || i + 1 >= prompt.length;
    return { token, target: counts ? tokens[i + 1]! : NO };
  });
}

/** Packs rows by next-fit, written as the README describes it. */
function plainRows(
  pairs: readonly Pair[],
  { seq, trainOnPrompt = false }: { readonly seq: number; readonly trainOnPrompt?: boolean },
): Place[][] {
  const rows: Place[][] = [];
  let segment = 0;
  for (const pair of pairs) {
    const places = placesOf(pair, trainOnPrompt);
    while (places.length > 0) {
      const piece = places.splice(0, seq);
      const open = rows.at(-1);
      if (open === undefined || open.length + piece.length > seq) {
        rows.push([]);
        segment = 0;
      }
      rows.at(-1)!.push(...piece.map((p, i): Place => [p.token, p.target, segment, i]));
      segment++;
    }
  }
  for (const row of rows) {
    const next = row.at(-1)![2] + 1;
    for (let i = 0; row.length < seq; i++) {
      row.push([0, NO, next, i]);
    }
  }
  return rows;
}

/** Returns rows [0, count) as all ranks and micro-steps make them. */
async function rowsOf(
  data: Dataset,
  { count, seq, batch, ranks = 1 }: { count: number; seq: number; batch: number; ranks?: number },
): Promise<Place[][]> {
  const rows: Place[][] = [];
  for (let step = 0; rows.length < count; step++) {
    let numTargets = 0;
    for (let rank = 0; rank < ranks; rank++) {
      for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
        const made = await data.microBatch(step, rank, microStep);
        expect(made.firstRow + step * batch).toBe(rows.length);
        for (let row = 0; row < made.rows; row++) {
          const all = [made.tokens, made.targets, made.segments!, made.positions!];
          const own = all.map((values) => values.subarray(row * seq, (row + 1) * seq));
          rows.push(Array.from(own[0]!, (_, i) => own.map((values) => values[i]!)) as never);
        }
        numTargets += made.targets.filter((target) => target !== NO).length;
      }
    }
    expect(await data.numTargets(step)).toBe(numTargets);
  }
  return rows.slice(0, count);
}

describe('rows of documents', () => {
  it('are these, by hand', async () => {
    const { file, model } = jsonlFile([
      { prompt: 'ab', completion: 'c' },
      { text: 'defg' },
      { text: 'hijklmnop' },
    ]);
    await using data = await openFlags(
      `--model ${model} --data ${file} --order sequential --seq 6 --batch 4`,
    );
    const batch = await data.train.microBatch(0, 0, 0); // Rank 0 of two has two rows.
    expect(batch.rows).toBe(2);
    expect([...batch.tokens]).toEqual([...bytes('abc'), 0, 0, 0, ...bytes('defg'), 0, 0]);
    const [c] = bytes('c'); // b belongs to the prompt.
    expect([...batch.targets]).toEqual([NO, c, END, NO, NO, NO, ...bytes('efg'), END, NO, NO]);
    expect([...batch.segments!]).toEqual([0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1]);
    expect([...batch.positions!]).toEqual([0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0, 1]);
    const second = await data.train.microBatch(0, 1, 0);
    expect([...second.tokens]).toEqual([...bytes('hijklmnop'), 0, 0, 0]);
    expect([...second.targets]).toEqual([...bytes('ijklmnop'), END, NO, NO, NO]);
    expect([...second.segments!]).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
    expect([...second.positions!]).toEqual([0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2]);
    expect(data.train.size).toMatchObject({ tokens: 4 + 5 + 10, documents: 3 });
  });

  it('equal those of a plain way, through epochs, for every seed and way to cut them', async () => {
    const directory = lettersDirectory();
    const words = (least: number) =>
      fc.string({ unit: fc.constantFrom(...'abcdefgh'), minLength: least, maxLength: 14 });
    const cases = fc.record({
      pairs: fc.array(fc.record({ prompt: words(1), completion: words(1) }), {
        minLength: 1,
        maxLength: 9,
      }),
      seq: fc.integer({ min: 1, max: 12 }),
      seed: fc.nat({ max: 99 }),
      batch: fc.integer({ min: 1, max: 5 }),
      ranks: fc.integer({ min: 1, max: 4 }),
      gradAccum: fc.integer({ min: 1, max: 2 }),
      trainOnPrompt: fc.boolean(),
    });
    await fc.assert(
      fc.asyncProperty(cases, async ({ pairs, seq, seed, batch, ranks, gradAccum, ...rest }) => {
        const { file, model } = jsonlFile(pairs, { model: directory });
        const flags = `--model ${model} --data ${file} --seq ${seq} --batch ${batch} --seed ${seed}`;
        const prompts = rest.trainOnPrompt ? ' --train-on-prompt' : '';
        await using data = await openFlags(
          `${flags} --ranks ${ranks} --grad-accum ${gradAccum}${prompts}`,
        );
        const expected = [0, 1, 2].flatMap((epoch) =>
          plainRows(
            Array.from(permute(pairs.length, seed, epoch), (i) => pairs[i]!),
            { seq, ...rest },
          ),
        );
        const count = expected.length;
        expect(await rowsOf(data.train, { count, seq, batch, ranks })).toEqual(expected);
      }),
      { numRuns: 12 },
    );
  });

  it('are the same whoever asks for them first', async () => {
    const pairs = Array.from({ length: 7 }, (_, i) => ({
      prompt: 'p',
      completion: 'c'.repeat(i + 1),
    }));
    const { file, model } = jsonlFile(pairs);
    await using data = await openFlags(`--model ${model} --data ${file} --seq 8 --batch 2`);
    const late = await data.train.microBatch(9, 1, 0);
    const early = await data.train.microBatch(0, 1, 0);
    await using again = await openFlags(`--model ${model} --data ${file} --seq 8 --batch 2`);
    expect(await again.train.microBatch(0, 1, 0)).toEqual(early);
    expect(await again.train.microBatch(9, 1, 0)).toEqual(late);
  });

  it('keep documents apart that are evaluated on, the same ones for every seed', async () => {
    const lines = Array.from({ length: 20 }, (_, i) => ({
      text: String.fromCharCode(97 + i).repeat(3),
    }));
    const { file, model } = jsonlFile(lines);
    const letters = async (seed: number) => {
      await using data = await openFlags(
        `--model ${model} --data ${file} --valid-fraction 0.2 --seq 3 --batch 20 --ranks 1 --seed ${seed}`,
      );
      const [train, valid] = [data.train, data.valid!];
      expect([train.size.documents, valid.size.documents, valid.numSteps]).toEqual([16, 4, 1]);
      const read = async (one: Dataset) => (await one.microBatch(0, 0, 0)).tokens;
      return { train: await read(train), valid: [...(await read(valid))] };
    };
    const [one, two] = [await letters(1), await letters(2)];
    expect(one.valid).toEqual(two.valid);
    // They come in the order of the file.
    expect([...one.valid].sort((a, b) => a - b)).toEqual(one.valid);
    expect(one.train).not.toEqual(two.train);
    const all = new Set([...one.train.subarray(0, 48), ...one.valid]);
    expect(all).toEqual(new Set(bytes('abcdefghijklmnopqrst')));
  });
});

const PAIRS: readonly Pair[] = [
  { prompt: 'one plus one is ', completion: 'two' },
  { prompt: 'say a long word: ', completion: 'antidisestablishmentarianism, no less' },
  { prompt: 'x', completion: 'y' },
  { prompt: 'and ', completion: 'on' },
  { prompt: 'the end', completion: '?' },
];
const SEQ = 24;

/** The pieces that a model must see separately, as [ids, targets] cut at SEQ. */
const PIECES = PAIRS.flatMap((pair) => {
  const places = placesOf(pair, false);
  return Array.from({ length: Math.ceil(places.length / SEQ) }, (_, i) =>
    places.slice(i * SEQ, (i + 1) * SEQ),
  );
});

describe('the losses of packed rows', () => {
  it('are those of the documents alone', async () => {
    const { file, model } = jsonlFile(PAIRS);
    const flags = `--model ${model} --data ${file} --seq ${SEQ} --batch 9 --ranks 1 --order sequential`;
    await using data = await openFlags(flags);
    const { modelConfig } = await configOf(flags);
    const device = new Device(createReferenceBackend());
    const gpt = makeModel(device, languageConfig(modelConfig), { seed: 3 });
    const losses = async (arrays: Record<string, Uint32Array>, shape: [number, number]) =>
      device.noGrad(() =>
        device.scope(async () => {
          const on = (name: string): Tensor | undefined =>
            arrays[name] && device.tensor(arrays[name], shape);
          const options = {
            targets: on('targets'),
            segments: on('segments'),
            positions: on('positions'),
          };
          return [...(await (await gpt.call(on('tokens')!, options)).toArray())] as number[];
        }),
      );
    const batch = await data.train.microBatch(0, 0, 0);
    const { tokens, targets, segments, positions } = batch;
    const packed = await losses({ tokens, targets, segments: segments!, positions: positions! }, [
      batch.rows,
      SEQ,
    ]);
    const found = packed.filter((_, i) => targets[i] !== NO);
    const expected: number[] = [];
    for (const piece of PIECES) {
      const apart = {
        tokens: Uint32Array.from(piece, ({ token }) => token),
        targets: Uint32Array.from(piece, ({ target }) => target),
      };
      const own = await losses(apart, [1, piece.length]);
      expected.push(...own.filter((_, i) => piece[i]!.target !== NO));
    }
    // The batch is longer than the first epoch, so its last rows begin the second one.
    expect(found.length).toBeGreaterThan(expected.length);
    for (const [i, loss] of expected.entries()) {
      expect(Math.abs(found[i]! / loss - 1)).toBeLessThan(1e-6);
    }
    expect(packed.filter((loss, i) => targets[i] === NO && loss !== 0)).toEqual([]);
    device.dispose();
  });

  it('sum to what a person adds up over the answers, for every strategy', async () => {
    const { file, model } = jsonlFile(PAIRS);
    const flags = `--device cpu --model ${model} --data ${file} --seq ${SEQ} --batch 4 --steps 2 --lr 0.01`;
    const config = await configOf(`${flags} --strategy single`);
    await using data = await openFlags(`${flags} --strategy single`);
    const { segments, tokens, targets } = await data.train.microBatch(0, 0, 0);
    const device = new Device(createReferenceBackend());
    const gpt = makeModel(device, languageConfig(config.modelConfig), { seed: config.seed });
    let sum = 0;
    let number = 0;
    for (let at = 0; at < tokens.length; ) {
      let end = at + 1;
      while (end % SEQ !== 0 && segments![end] === segments![at]) {
        end++;
      }
      const ids = tokens.slice(at, end);
      const logits = await device.scope(async () =>
        (await gpt.call(device.tensor(ids, [1, ids.length]))).toArray(),
      );
      for (let i = at; i < end; i++) {
        if (targets[i] !== NO) {
          const row = [...logits.subarray((i - at) * 260, (i - at + 1) * 260)] as number[];
          sum += Math.log(row.reduce((all, x) => all + Math.exp(x), 0)) - row[targets[i]!]!;
          number++;
        }
      }
      at = end;
    }
    device.dispose();
    const losses: number[][] = [];
    for (const strategy of [
      'single',
      'fsdp --ranks 3',
      'ddp --ranks 2 --grad-accum 2',
      'offload --slices 2 --micro-batches 2',
    ]) {
      const { outcomes } = await trainOn(`${flags} --strategy ${strategy}`, (text) => text);
      expect(outcomes[0]![0]!.numTargets).toBe(number);
      losses.push(outcomes[0]!.map(({ loss }) => loss));
    }
    for (const [first, second] of losses) {
      expect(Math.abs(first! / (sum / number) - 1)).toBeLessThan(2e-6);
      expect(worstRatio([second!], [losses[0]![1]!])).toBeLessThan(2e-6);
    }
  });
});
