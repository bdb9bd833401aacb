// infoNce over ranks and in chunks is compared with that of one process and a whole batch.

import { Decoder } from '@shardweave/nn';
import {
  type ContrastiveOptions,
  cachedInfoNce,
  EmbeddingModel,
  embedDocuments,
  infoNce,
} from '@shardweave/nn/embedding';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorOf, expectClose, onRanks } from '../../../tooling/test-kit/index.ts';
import { makeDevice } from './support/support.js';

/** Documents of 1 to 5 tokens, which depend on their index alone. */
const documentsOf = (count: number, seed: number) =>
  Array.from({ length: count }, (_, i) =>
    Array.from({ length: 1 + ((i * 7 + seed) % 5) }, (_, at) => (i * 5 + at * 3 + seed) % 24),
  );

type Batch = Readonly<Record<'queries' | 'documents' | 'negatives', number[][]>>;

const BATCH = 8;
const WHOLE: Batch = {
  queries: documentsOf(BATCH, 1),
  documents: documentsOf(BATCH, 2),
  negatives: documentsOf(4, 3),
};
const OPTIONS = {
  temperature: 0.5,
  symmetric: true,
  matryoshkaDims: [8, 4],
  matryoshkaWeights: [1, 0.5],
} satisfies ContrastiveOptions;

/** A rank's equal part of each list. */
function partOf(rank: number, worldSize: number): Batch {
  const cut = (list: readonly number[][]) => {
    const count = list.length / worldSize;
    return list.slice(rank * count, (rank + 1) * count);
  };
  const { queries, documents, negatives } = WHOLE;
  return { queries: cut(queries), documents: cut(documents), negatives: cut(negatives) };
}

const makeModel = (device: Device, dropout = 0) =>
  new EmbeddingModel(
    new Decoder(
      device,
      {
        model_type: 'qwen3',
        vocab_size: 24,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        max_position_embeddings: 8,
        initializer_range: 0.5,
        tie_word_embeddings: true,
        attention_dropout: dropout,
      },
      { seed: 3 },
    ),
    { pooling: 'last' },
  );

async function gradientsOf(model: EmbeddingModel): Promise<Map<string, Float32Array>> {
  const found = new Map<string, Float32Array>();
  for (const [name, { grad }] of model.namedParameters()) {
    found.set(name, (await grad!.toArray()) as Float32Array);
  }
  return found;
}

/** The loss of a batch as a whole, and the gradients that its backward leaves. */
async function wholeOf(model: EmbeddingModel, batch: Batch, options: ContrastiveOptions) {
  const { device } = model;
  const loss = await device.scope(async () => {
    const queries = await embedDocuments(model, batch.queries);
    const documents = await embedDocuments(model, batch.documents);
    const negatives = await embedDocuments(model, batch.negatives);
    const loss = await infoNce(queries, documents, { ...options, negatives });
    await loss.backward();
    return loss.item();
  });
  return { loss, gradients: await gradientsOf(model) };
}

let alone: ReturnType<typeof wholeOf> | undefined;

/** The loss and gradients of one process with the whole batch. */
function oneProcess() {
  alone ??= computed();
  return alone;
}

async function computed() {
  const [found] = await onRanks(1, async ({ device }) =>
    wholeOf(makeModel(device), WHOLE, OPTIONS),
  );
  return found!;
}

describe('infoNce over ranks', () => {
  it.each([2, 4])('has the loss and averaged gradients of one process on %i', async (ranks) => {
    const alone = await oneProcess();
    const found = await onRanks(ranks, async ({ device, rank, worldSize, group }) => {
      const own = await group.split(0);
      const batch = partOf(rank, worldSize);
      const run = await wholeOf(makeModel(device), batch, { ...OPTIONS, group: own });
      expect(own.stats().allGathers).toBe(1);
      return run;
    });
    for (const { loss } of found) {
      expect(loss).toBe(found[0]!.loss);
    }
    expectClose([found[0]!.loss], [alone.loss]);
    for (const [name, values] of alone.gradients) {
      const mean = values.map((_, i) =>
        found.reduce((sum, { gradients }) => sum + gradients.get(name)![i]! / ranks, 0),
      );
      expectClose(mean, values, 2e-6, name);
    }
  });
});

describe('cachedInfoNce', () => {
  it.each([1, 3, 8])(
    'has the loss and gradients of the whole batch in chunks of %i',
    async (chunkSize) => {
      const alone = await oneProcess();
      await onRanks(1, async ({ device }) => {
        const model = makeModel(device);
        const loss = await cachedInfoNce(model, WHOLE, { ...OPTIONS, chunkSize });
        expectClose([await loss.item()], [alone.loss], 1e-6);
        expectClose(await gradientsOf(model), alone.gradients, 1e-6);
        loss.dispose();
        const { activation, gradient, parameter } = device.memory().live;
        expect([activation, gradient]).toEqual([0, parameter]);
      });
    },
  );

  it('multiplies gradients by gradientScale, but not the loss', async () => {
    const alone = await oneProcess();
    await onRanks(1, async ({ device }) => {
      const model = makeModel(device);
      const options = { ...OPTIONS, chunkSize: 4, gradientScale: 0.25 };
      expectClose([await (await cachedInfoNce(model, WHOLE, options)).item()], [alone.loss], 1e-6);
      const quarter = [...alone.gradients].map(
        ([name, values]) => [name, values.map((value) => value / 4)] as const,
      );
      expectClose(await gradientsOf(model), new Map(quarter), 1e-6);
    });
  });

  it('drops in the second run of a chunk what it dropped in the first', async () => {
    const loss = async (nudge: number) => {
      const [found] = await onRanks(1, async ({ device }) => {
        const model = makeModel(device, 0.5);
        device.random.begin({ step: 3, rowOffset: 0 });
        const weight = model.namedParameters().at(-1)![1];
        const values = (await weight.toArray()) as Float32Array;
        const moved = values.map((value, i) => value + (i === 2 ? nudge : 0));
        weight.storage.write(new Uint8Array(moved.buffer), weight.offset * 4);
        const value = await cachedInfoNce(model, WHOLE, { temperature: 0.5, chunkSize: 4 });
        return { value: await value.item(), slope: (await weight.grad!.toArray())[2]! };
      });
      return found!;
    };
    const [below, at, above] = [await loss(-1e-2), await loss(0), await loss(1e-2)];
    expect(Math.abs(at.slope)).toBeGreaterThan(1e-2); // else every gradient would be near it
    expectClose([at.slope], [(above.value - below.value) / 2e-2], 1e-3);
  });

  it('takes documents packed in rows', async () => {
    const alone = await oneProcess();
    await onRanks(1, async ({ device }) => {
      const model = makeModel(device);
      const widths = new Set<number>();
      model.aroundForward({ before: ([ids]) => void widths.add((ids as Tensor).shape[1]!) });
      await cachedInfoNce(model, WHOLE, { ...OPTIONS, chunkSize: 3, rowLength: 7 });
      expect([...widths]).toEqual([7]);
      expectClose(await gradientsOf(model), alone.gradients, 1e-6);
    });
  });

  it('refuses batches and options that cannot work', async () => {
    const device = makeDevice();
    const model = makeModel(device);
    const { queries, documents } = WHOLE;
    const calls = [
      () => cachedInfoNce(model, { queries, documents: [[1]] }, { chunkSize: 1 }),
      () => cachedInfoNce(model, { queries: [], documents: [] }, { chunkSize: 1 }),
      () => cachedInfoNce(model, { queries, documents }, { chunkSize: 0 }),
    ];
    const found = await Promise.all(calls.map(async (call) => (await errorOf(call))?.message));
    expect(found).toEqual([
      'cachedInfoNce: expected a document for each query and at least one, got 8 queries and 1 documents. Hard negatives are a list beside them.',
      'cachedInfoNce: expected a document for each query and at least one, got 0 queries and 0 documents. Hard negatives are a list beside them.',
      'cachedInfoNce: expected chunkSize to be a whole number of at least 1, got 0.',
    ]);
    device.dispose();
  });
});
