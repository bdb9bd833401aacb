// Embeddings of documents: their pooled rows against loops in float64, documents packed in a row
// against those alone, and the rows of a decoder before its head.

import { checkpoint, Decoder, Gpt2, type LanguageModel, type Module } from '@shardweave/nn';
import {
  type EmbeddingBodyOptions,
  type EmbeddingCallOptions,
  EmbeddingModel,
  Encoder,
  embedDocuments,
  SequenceClassifier,
} from '@shardweave/nn/embedding';
import { type Device, linear, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorOf, loose, moduleOf } from '../../../tooling/test-kit/index.ts';
import { expectClose, expectGradients, makeDevice, read, values } from './support/support.js';

const WIDTH = 4;
const DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1]];

const decoder = (device: Device) =>
  new Decoder(
    device,
    {
      model_type: 'qwen3',
      vocab_size: 12,
      hidden_size: 8,
      intermediate_size: 12,
      num_hidden_layers: 2,
      num_attention_heads: 2,
      num_key_value_heads: 1,
      max_position_embeddings: 8,
      initializer_range: 0.5,
    },
    { seed: 3 },
  );

const encoder = (device: Device) =>
  new Encoder(
    device,
    {
      vocab_size: 12,
      hidden_size: 8,
      intermediate_size: 12,
      num_hidden_layers: 2,
      num_attention_heads: 2,
      max_position_embeddings: 8,
      initializer_range: 0.5,
      hidden_dropout_prob: 0,
      attention_probs_dropout_prob: 0,
      add_pooling_layer: false,
    },
    { seed: 3 },
  );

/** A body whose rows [batch, seq, WIDTH] are a parameter, with what it was last called with. */
function fixedBody(device: Device, rows: number, seq: number) {
  const seen: { options?: EmbeddingBodyOptions } = {};
  const table = device.tensor(values(rows * seq * WIDTH, 3), [rows, seq, WIDTH]);
  const body = moduleOf(
    device,
    { table },
    (parts, _: Tensor, options: EmbeddingBodyOptions = {}) => {
      seen.options = options;
      return mul(parts.table, 1);
    },
  );
  return { body, seen, table };
}

/** The embeddings of rows [seq][WIDTH] by loops: the documents' spans, pooled, cut, normalized. */
function expectedOf(
  table: readonly number[],
  spans: readonly (readonly [start: number, length: number])[],
  pooling: 'mean' | 'cls' | 'last',
  dimensions: number,
): number[] {
  return spans.flatMap(([start, length]) => {
    const [from, to] = { mean: [0, length], cls: [0, 1], last: [length - 1, length] }[pooling] as [
      number,
      number,
    ];
    const pooled = Array.from({ length: dimensions }, (_, column) => {
      let total = 0;
      for (let i = from; i < to; i++) {
        total += table[(start + i) * WIDTH + column]!;
      }
      return total / (to - from);
    });
    const norm = Math.hypot(...pooled);
    return pooled.map((value) => value / norm);
  });
}

describe('EmbeddingModel', () => {
  // Three documents in the first row, with padding, and one in the second.
  const lengths = [[2, 1, 1], [3]];
  const spans = [
    [0, 2],
    [2, 1],
    [3, 1],
    [5, 3],
  ] as const;

  it.each(['mean', 'cls', 'last'] as const)('pools each document by %s', async (pooling) => {
    const device = makeDevice();
    const { body, table } = fixedBody(device, 2, 5);
    const model = new EmbeddingModel(body, { pooling, dimensions: 3 });
    const ids = device.zeros([2, 5], { dtype: 'u32' });
    const expected = expectedOf(values(2 * 5 * WIDTH, 3), spans, pooling, 3);
    expectClose(await read(await model.call(ids, { lengths })), expected, 1e-6);
    const weights = device.tensor(values(12, 9), [4, 3]);
    const loss = async () => sum(mul(await model.call(ids, { lengths }), weights));
    await expectGradients([table], loss);
    device.dispose();
  });

  it('keeps lengths and rows of zeros where it does not normalize, and zeros where it does', async () => {
    const device = makeDevice();
    const { body, table } = fixedBody(device, 1, 2);
    const ids = device.zeros([1, 2], { dtype: 'u32' });
    const plain = new EmbeddingModel(body, { pooling: 'last', normalize: false });
    expect(await read(await plain.call(ids))).toEqual(values(2 * WIDTH, 3).slice(WIDTH));
    table.storage.write(new Uint8Array(2 * WIDTH * 4));
    const normalized = new EmbeddingModel(body, { pooling: 'last' });
    const rows = await normalized.call(ids);
    expect(await read(rows)).toEqual([0, 0, 0, 0]);
    await sum(rows).backward();
    expect((await read(table.grad!)).every(Number.isFinite)).toBe(true);
    device.dispose();
  });

  it('tells its body apart documents and padding only where rows have several', async () => {
    const device = makeDevice();
    const { body, seen } = fixedBody(device, 2, 5);
    const model = new EmbeddingModel(body, { pooling: 'mean' });
    const ids = device.zeros([2, 5], { dtype: 'u32' });
    await model.call(ids);
    expect(seen.options).toEqual({});
    await device.scope(async () => {
      await model.call(ids, { lengths: [[5], [3]] });
      expect(seen.options!.positions).toBeUndefined();
    });
    await device.scope(async () => {
      await loose(model).forward(ids, { lengths });
      const { segments, positions } = seen.options!;
      expect(await read(segments!)).toEqual([0, 0, 1, 2, 4, 3, 3, 3, 4, 4]);
      expect(await read(positions!)).toEqual([0, 1, 0, 0, 0, 0, 1, 2, 0, 0]);
    });
    device.dispose();
  });

  it.each([
    ['Decoder', decoder, 'last'],
    ['Encoder', encoder, 'mean'],
  ] as const)(
    'gives packed and padded documents what a %s gives them alone',
    async (_, make, pooling) => {
      const device = makeDevice();
      const model = new EmbeddingModel(make(device), { pooling });
      const alone = [];
      for (const document of DOCUMENTS) {
        alone.push(...(await read(await embedDocuments(model, [document]))));
      }
      expectClose(await read(await embedDocuments(model, DOCUMENTS)), alone, 1e-6);
      const shapes: unknown[] = [];
      model.aroundForward({ before: ([ids]) => void shapes.push((ids as Tensor).shape) });
      expectClose(
        await read(await embedDocuments(model, DOCUMENTS, { rowLength: 6 })),
        alone,
        1e-6,
      );
      expect(shapes).toEqual([[2, 6]]); // The first three documents fill a row.
      device.dispose();
    },
  );

  it.each([[[[2, 1], []]], [[[4], []]], [[[1, 1, 2], [4]]], [[[3], [4]]]])(
    'gives documents of the lengths %j what each has alone, over any body',
    async (lengths) => {
      const device = makeDevice();
      const labels = ['a', 'b'];
      const pooler = (on: Device) =>
        new Encoder(on, { ...encoder(on).config, add_pooling_layer: true }, { seed: 3 });
      const models: Module<[ids: Tensor, options?: EmbeddingCallOptions], Tensor>[] = [
        new EmbeddingModel(decoder(device), { pooling: 'last', normalize: false }),
        new EmbeddingModel(encoder(device), { pooling: 'mean', dimensions: 3 }),
        new EmbeddingModel(checkpoint(encoder(device)), { pooling: 'cls' }),
        new SequenceClassifier(pooler(device), { labels }),
        new SequenceClassifier(checkpoint(decoder(device)), { labels }),
      ];
      const rows = lengths.map((_, row) => [5, 1, 7, 2].map((id) => id + row));
      for (const model of models) {
        const call = async (given: number[][], options?: EmbeddingCallOptions) => {
          const ids = device.tensor(Uint32Array.from(given.flat()), [
            given.length,
            given[0]!.length,
          ]);
          return read(await model.call(ids, options));
        };
        const alone: number[] = [];
        for (const [row, own] of lengths.entries()) {
          let start = 0;
          for (const length of own) {
            alone.push(...(await call([rows[row]!.slice(start, start + length)])));
            start += length;
          }
        }
        expectClose(await call(rows, { lengths }), alone, 1e-6);
      }
      device.dispose();
    },
  );

  it("keeps its body's names, and trains all of its parameters but a head of its own", async () => {
    const device = makeDevice();
    const body = decoder(device);
    const names = body.namedParameters().map(([name]) => name);
    const model = new EmbeddingModel(body, { pooling: 'mean' });
    expect(model.namedParameters().map(([name]) => name)).toEqual(names);
    const rows = await embedDocuments(model, DOCUMENTS);
    await sum(mul(rows, device.tensor(values(rows.size, 4), rows.shape))).backward();
    const without = model.namedParameters().filter(([, { grad }]) => grad === undefined);
    expect(without.map(([name]) => name)).toEqual(['lm_head.weight']);
    device.dispose();
  });

  it('refuses lengths, documents and options that cannot work', async () => {
    const device = makeDevice();
    const { body } = fixedBody(device, 2, 5);
    const model = new EmbeddingModel(body, { pooling: 'mean', dimensions: 5 });
    const ids = device.zeros([2, 5], { dtype: 'u32' });
    const call = (given: unknown) => () => model.call(ids, loose({ lengths: given }));
    const calls = [
      call([[5]]),
      call([[3, 3], [1]]),
      call([[], []]),
      () => model.call(ids),
      () => embedDocuments(model, []),
      () => embedDocuments(model, [[1], []]),
      () => embedDocuments(model, [[1, 2, 3]], { rowLength: 2 }),
      () => new EmbeddingModel(body, loose({ pooling: 'max' })),
      () => new EmbeddingModel(loose({}), { pooling: 'mean' }),
    ];
    const found = await Promise.all(calls.map(async (each) => (await errorOf(each))?.message));
    expect(found).toEqual([
      'EmbeddingModel.call: expected lengths to be a list for each of 2 rows, got 1 lists.',
      'EmbeddingModel.call: expected lengths of at least 1 that add up to at most 5, got [3, 3] (row 0).',
      'EmbeddingModel.call: expected lengths of a document, got none.',
      'EmbeddingModel: expected a body of at least 5 dimensions, got one of 4.',
      'embedDocuments: expected documents of 1 to any number of tokens, got no document.',
      'embedDocuments: expected documents of 1 to 1 tokens, got one of 0 (document 1).',
      'embedDocuments: expected documents of 1 to 2 tokens, got one of 3 (document 0).',
      "EmbeddingModel: expected pooling to be 'mean' or 'cls' or 'last', got \"max\".",
      'EmbeddingModel: expected a module, got a plain object.',
    ]);
    device.dispose();
  });
});

describe('onlyHidden', () => {
  it.each([
    ['Decoder', decoder],
    [
      'Gpt2',
      (device: Device) =>
        new Gpt2(device, { vocab_size: 12, n_positions: 8, n_embd: 8, n_layer: 1, n_head: 2 }),
    ],
  ] as const)('gives the rows of a %s that its head multiplies', async (_, make) => {
    const device = makeDevice();
    const model = make(device) as LanguageModel;
    model.eval(); // without dropout
    const ids = device.tensor(Uint32Array.of(1, 2, 3), [1, 3]);
    const weight = model.namedParameters().find(([name]) => /lm_head|wte/.test(name))![1];
    const hidden = await model.call(ids, { onlyHidden: true });
    const logits = await read(await model.call(ids));
    expectClose(await read(linear(hidden, { weight, transposeWeight: true })), logits, 1e-6);
    const last = await model.call(ids, { onlyHidden: true, onlyLast: true });
    expect(await read(last)).toEqual((await read(hidden)).slice(-8));
    const both = () => model.call(ids, { onlyHidden: true, targets: ids });
    expect((await errorOf(both))?.message).toBe(
      'model.call: expected targets or onlyHidden, got both. Hidden rows have no loss.',
    );
    device.dispose();
  });
});
