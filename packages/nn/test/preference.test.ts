// Losses of pairs of answers and their gradients are compared with PyTorch's in float64
// (tooling/reference/preference.py), and probabilities of answers with logits of rows of one each.

import { readFileSync } from 'node:fs';
import { applyLora, Gpt2 } from '@shardweave/nn';
import { answerLogProbs, dpoLoss, orpoLoss, withoutAdapters } from '@shardweave/nn/preference';
import type { Device } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { errorOf } from '../../../tooling/test-kit/index.ts';
import { expectClose, makeDevice, read, values } from './support/support.js';

interface Pairs {
  readonly chosen: readonly number[];
  readonly rejected: readonly number[];
}

const FILE = new URL('../../../tooling/reference/data/preference/expected.json', import.meta.url);
const { reference, lengths, losses } = JSON.parse(readFileSync(FILE).toString()) as {
  readonly reference: Pairs;
  readonly lengths: Pairs;
  readonly losses: readonly (Pairs & {
    readonly name: string;
    readonly loss: number;
    readonly margins: readonly number[];
    readonly gradients: readonly (readonly number[])[];
  })[];
};

type LossOf = (pairs: ReturnType<typeof pairsOn>) => ReturnType<typeof dpoLoss>;

const LOSSES: Readonly<Record<string, LossOf>> = {
  dpo: (pairs) => dpoLoss(pairs, { reference }),
  smooth: (pairs) => dpoLoss(pairs, { reference, beta: 0.3, labelSmoothing: 0.2 }),
  orpo: (pairs) => orpoLoss(pairs, { lengths }),
  heavy: (pairs) => orpoLoss(pairs, { lengths, lambda: 0.7 }),
  certain: (pairs) => orpoLoss(pairs, { lengths, lambda: 0.7 }),
};

function pairsOn(device: Device, { chosen, rejected }: Pairs) {
  const leaf = (logProbs: readonly number[]) =>
    device.tensor(Float32Array.from(logProbs), [logProbs.length], { requiresGrad: true });
  return { chosen: leaf(chosen), rejected: leaf(rejected) };
}

it.each(losses)('$name is the loss of PyTorch, and so are its gradients', async (expected) => {
  const device = makeDevice();
  const pairs = pairsOn(device, expected);
  const { loss, margins } = LOSSES[expected.name]!(pairs);
  expectClose([await loss.item()], [expected.loss], 1e-6);
  expectClose(await read(margins), expected.margins, 2e-6);
  await loss.backward();
  // Near the probability 1 a slope is the reciprocal of a loss of a few digits.
  const tolerance = expected.name === 'certain' ? 1e-5 : 2e-6;
  expectClose(await read(pairs.chosen.grad!), expected.gradients[0]!, tolerance);
  expectClose(await read(pairs.rejected.grad!), expected.gradients[1]!, tolerance);
  device.dispose();
});

it('sums of parts are divided by the pairs of all of them', async () => {
  const device = makeDevice();
  const { chosen, rejected } = losses[0]!;
  const part = async (first: number, end: number) => {
    const cut = (all: Pairs) => ({
      chosen: all.chosen.slice(first, end),
      rejected: all.rejected.slice(first, end),
    });
    const pairs = pairsOn(device, cut({ chosen, rejected }));
    const dpo = dpoLoss(pairs, { reference: cut(reference), divisor: 5 });
    const orpo = orpoLoss(pairs, { lengths: cut(lengths), divisor: 5 });
    return [await dpo.loss.item(), await orpo.loss.item()];
  };
  const [first, rest] = [await part(0, 2), await part(2, 5)];
  const { loss: orpo } = losses.find(({ name }) => name === 'orpo')!;
  expectClose([first[0]! + rest[0]!, first[1]! + rest[1]!], [losses[0]!.loss, orpo], 1e-6);
  device.dispose();
});

it('an answer that is certain to f32 has finite odds and no gradient from them', async () => {
  const device = makeDevice();
  const pairs = pairsOn(device, { chosen: [0], rejected: [-1] });
  const { loss } = orpoLoss(pairs, { lengths: { chosen: [3], rejected: [3] } });
  await loss.backward();
  expect(Number.isFinite(await loss.item())).toBe(true);
  expectClose(await read(pairs.chosen.grad!), [-1 / 3], 1e-6); // that of its tokens alone
  device.dispose();
});

const CONFIG = { vocab_size: 11, n_positions: 16, n_embd: 8, n_layer: 1, n_head: 2 };
const ANSWERS = [
  { ids: [1, 2, 3, 4, 5], promptLength: 2 },
  { ids: [6, 7], promptLength: 1 },
  { ids: [8, 9, 10, 0, 1, 2, 3, 4], promptLength: 5 },
  { ids: [1, 2, 5, 5], promptLength: 3 },
];

it('answers have the probabilities of their tokens, however they are packed', async () => {
  const device = makeDevice();
  const model = new Gpt2(device, { ...CONFIG, embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 });
  const wanted: number[] = [];
  for (const { ids, promptLength } of ANSWERS) {
    const logits = await model.call(device.tensor(Uint32Array.from(ids), [1, ids.length]));
    const all = await read(logits);
    let sum = 0;
    for (let i = promptLength; i < ids.length; i++) {
      const row = all.slice((i - 1) * 11, i * 11);
      sum += row[ids[i]!]! - Math.log(row.reduce((total, logit) => total + Math.exp(logit), 0));
    }
    wanted.push(sum);
  }
  for (const rowLength of [undefined, 7, 11, 40 - 24]) {
    expectClose(await read(await answerLogProbs(model, ANSWERS, { rowLength })), wanted, 2e-6);
  }
  model.dispose();
  device.dispose();
});

it('refuses answers without a token, and numbers of other pairs', async () => {
  const device = makeDevice();
  const model = new Gpt2(device, CONFIG);
  const refusal = async (ids: number[], promptLength: number, rowLength?: number) =>
    (await errorOf(() => answerLogProbs(model, [{ ids, promptLength }], { rowLength })))?.message;
  expect(await refusal([1, 2], 2)).toContain('got 2 of 2 tokens (answer 0)');
  expect(await refusal([1, 2], 0)).toContain('got 0 of 2 tokens (answer 0)');
  expect(await refusal([1, 2, 3, 4], 1, 2)).toContain('documents of 1 to 2 tokens, got one of 3');
  const pairs = pairsOn(device, { chosen: [-1, -2], rejected: [-3, -4] });
  const one = { chosen: [1], rejected: [1, 2] };
  expect(() => dpoLoss(pairs, { reference: one })).toThrow(
    'dpoLoss: expected chosen and rejected [pairs] and two numbers for each pair, got [2], [2], 1 and 2 numbers.',
  );
  expect(() => orpoLoss(pairs, { lengths: one })).toThrow('orpoLoss: expected chosen');
  expect(() => dpoLoss(pairs, { reference: pairs as never, labelSmoothing: 0.5 })).toThrow(
    'labelSmoothing',
  );
  model.dispose();
  device.dispose();
});

it('a model without its adapters has the bits of its base, and then its adapters again', async () => {
  const device = makeDevice();
  const options = { ...CONFIG, embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 };
  const [base, model] = [new Gpt2(device, options), new Gpt2(device, options)];
  applyLora(model, { rank: 2 });
  const own = async (of: Gpt2) => read(await answerLogProbs(of, ANSWERS));
  for (const [name, parameter] of model.namedParameters()) {
    if (name.includes('lora_B')) {
      parameter.storage.write(new Uint8Array(Float32Array.from(values(parameter.size)).buffer));
    }
  }
  const adapted = await own(model);
  expect(await withoutAdapters(model, () => own(model))).toEqual(await own(base));
  expect(await own(model)).toEqual(adapted);
  expect(adapted).not.toEqual(await own(base));
  await expect(withoutAdapters(model, () => Promise.reject(new Error('no')))).rejects.toThrow('no');
  expect(await own(model)).toEqual(adapted);
  for (const each of [base, model]) {
    each.dispose();
  }
  device.dispose();
});
