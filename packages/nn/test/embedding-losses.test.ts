// Losses of embeddings and their gradients are compared with PyTorch's in float64
// (tooling/reference/embedding.py).

import { readFileSync } from 'node:fs';
import {
  coSentLoss,
  cosineSimilarityLoss,
  infoNce,
  marginMseLoss,
  tripletLoss,
} from '@shardweave/nn/embedding';
import { cast, type Device, type Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { errorOf } from '../../../tooling/test-kit/index.ts';
import { expectClose, makeDevice, read } from './support/support.js';

const DATA = new URL('../../../tooling/reference/data/embedding/', import.meta.url);
type Name = 'queries' | 'documents' | 'negatives' | 'far';
const { width, scores, embeddings, cases } = JSON.parse(
  readFileSync(new URL('expected.json', DATA)).toString(),
) as {
  readonly width: number;
  readonly scores: readonly number[];
  readonly embeddings: Readonly<Record<Name, readonly number[]>>;
  readonly cases: readonly {
    readonly name: string;
    readonly loss: number;
    readonly gradients: Partial<Record<Name, readonly number[]>>;
  }[];
};

type Rows = Readonly<Record<Name, Tensor>>;

const temperature = 0.7;
const LOSSES: Readonly<Record<string, (rows: Rows) => Tensor | Promise<Tensor>>> = {
  plain: ({ queries, documents }) => infoNce(queries, documents, { temperature }),
  default: ({ queries, documents }) => infoNce(queries, documents, { matryoshkaDims: [width] }), // normalized, as the default expects
  negatives: ({ queries, documents, negatives }) =>
    infoNce(queries, documents, { temperature, negatives }),
  symmetric: ({ queries, documents, negatives }) =>
    infoNce(queries, documents, { temperature, negatives, symmetric: true }),
  matryoshka: ({ queries, documents, negatives }) =>
    infoNce(queries, documents, {
      negatives,
      matryoshkaDims: [6, 4, 2],
      matryoshkaWeights: [1, 0.5, 0.25],
    }),
  cosineSimilarity: ({ queries, documents }) => cosineSimilarityLoss(queries, documents, scores),
  coSent: ({ queries, documents }) => coSentLoss(queries, documents, scores),
  marginMse: ({ queries, documents, far }) => marginMseLoss([queries, documents, far], scores),
  triplet: ({ queries, documents, far }) => tripletLoss([queries, documents, far], { margin: 0.5 }),
};

function leavesOn(device: Device): Rows {
  const entries = Object.entries(embeddings).map(([name, rows]) => {
    const shape = [rows.length / width, width];
    return [name, device.tensor(Float32Array.from(rows), shape, { requiresGrad: true })];
  });
  return Object.fromEntries(entries) as Rows;
}

it.each(cases)('$name is the loss of PyTorch, and so are its gradients', async (expected) => {
  const device = makeDevice();
  const leaves = leavesOn(device);
  const loss = await LOSSES[expected.name]!(leaves);
  expectClose([await loss.item()], [expected.loss], 1e-6);
  await loss.backward();
  const found = Object.entries(leaves).filter(([, { grad }]) => grad !== undefined);
  expect(found.map(([name]) => name)).toEqual(Object.keys(expected.gradients));
  for (const [name, { grad }] of found) {
    expectClose(await read(grad!), expected.gradients[name as Name]!, 2e-6);
  }
  device.dispose();
});

it.each(Object.entries(LOSSES))(
  '%s of embeddings in bf16 is that of their numbers in f32',
  async (_, lossOf) => {
    const device = makeDevice();
    const leaves = Object.entries(leavesOn(device));
    const on = (dtype: 'f32' | 'bf16') =>
      Object.fromEntries(
        leaves.map(([name, rows]) => [name, cast(cast(rows, 'bf16'), dtype)]),
      ) as Rows;
    const [half, whole] = [await lossOf(on('bf16')), await lossOf(on('f32'))];
    expect(half.dtype).toBe('f32');
    expect(await read(half)).toEqual(await read(whole));
    device.dispose();
  },
);

it('losses have their defaults where an option is left out', async () => {
  const device = makeDevice();
  const { queries, documents, far } = leavesOn(device);
  const pairs = [
    [
      () => infoNce(queries, documents),
      () => infoNce(queries, documents, { temperature: 0.05, symmetric: false }),
    ],
    [
      () => coSentLoss(queries, documents, scores),
      () => coSentLoss(queries, documents, scores, { scale: 20 }),
    ],
    [
      () => tripletLoss([queries, documents, far]),
      () => tripletLoss([queries, documents, far], { margin: 5 }),
    ],
  ] as const;
  for (const [usual, told] of pairs) {
    expect(await read(await usual())).toEqual(await read(await told()));
  }
  device.dispose();
});

it('pairs with equal scores have the coSentLoss 0', async () => {
  const device = makeDevice();
  const { queries, documents } = leavesOn(device);
  const loss = coSentLoss(queries, documents, [1, 1, 1, 1, 1]);
  expect(await loss.item()).toBe(0);
  device.dispose();
});

it('equal rows have finite gradients in losses by cosine and by distance', async () => {
  const device = makeDevice();
  const zeros = device.zeros([2, 3], { requiresGrad: true });
  const ones = device.full([2, 3], 1);
  await tripletLoss([zeros, zeros, ones]).backward();
  await cosineSimilarityLoss(zeros, ones, [1, 0]).backward();
  expect((await read(zeros.grad!)).every(Number.isFinite)).toBe(true);
  device.dispose();
});

it('embeddings and options that do not fit are refused with their shapes', async () => {
  const device = makeDevice();
  const { queries, documents, negatives } = leavesOn(device);
  const messages = [
    () => infoNce(queries, negatives),
    () => infoNce(queries, documents, { negatives: device.zeros([2, 5]) }),
    () => infoNce(queries, documents, { matryoshkaDims: [7] }),
    () => infoNce(queries, documents, { matryoshkaWeights: [1] }),
    () => infoNce(queries, documents, { temperature: 0 }),
    () => cosineSimilarityLoss(queries, documents, [1]),
    () => tripletLoss([queries, documents, negatives]),
  ];
  const found = await Promise.all(messages.map(async (loss) => (await errorOf(loss))?.message));
  expect(found).toEqual([
    'infoNce: expected queries [batch, width], documents of that shape and negatives of that width, got [5, 6], [3, 6]. Hard negatives are an option beside the documents.',
    'infoNce: expected queries [batch, width], documents of that shape and negatives of that width, got [5, 6], [5, 6], [2, 5]. Hard negatives are an option beside the documents.',
    "infoNce: expected matryoshkaDims up to the embeddings' width, 6, got 7.",
    'infoNce: expected a matryoshkaWeight for each of 0 matryoshkaDims, got 1.',
    'infoNce: expected temperature to be a finite number above 0, got 0.',
    'cosineSimilarityLoss: expected embeddings [rows, width] of one shape and a number for each row, got [5, 6], [5, 6] and 1 numbers.',
    'tripletLoss: expected embeddings [rows, width] of one shape, got [5, 6], [5, 6], [3, 6].',
  ]);
  device.dispose();
});
