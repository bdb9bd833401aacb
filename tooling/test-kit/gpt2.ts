// A GPT-2 of 6,000 parameters, and batches that it can learn.

import type { Gpt2Config, Module } from '@shardweave/nn';
import { type Device, mean } from '@shardweave/tensor-core';

export const TINY: Partial<Gpt2Config> = {
  vocab_size: 37,
  n_positions: 8,
  n_embd: 12,
  n_layer: 3,
  n_head: 2,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
};

/**
 * Token ids of a global batch. Each row counts up by 5 from its own start, so that a model can
 * learn it.
 */
export function tokens(step: number, batch: number, seq: number, vocab: number) {
  const cut = (shift: number) =>
    Int32Array.from({ length: batch * seq }, (_, i) => {
      const row = Math.floor(i / seq);
      return (row * 11 + step * 3 + 5 * ((i % seq) + shift)) % vocab;
    });
  return { ids: cut(0), targets: cut(1) };
}

/**
 * Runs forward and backward of rows [first, first + rows) of a global batch. The loss is the mean
 * over tokens.
 */
export async function forwardBackward(
  device: Device,
  model: Module,
  step: number,
  rows: { readonly batch: number; readonly first: number; readonly count: number },
  options: { readonly seq?: number; readonly vocab?: number } = {},
): Promise<number> {
  const { seq = 8, vocab = 37 } = options;
  const all = tokens(step, rows.batch, seq, vocab);
  const part = (values: Int32Array) =>
    values.slice(rows.first * seq, (rows.first + rows.count) * seq);
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: rows.first });
    const ids = device.tensor(part(all.ids), [rows.count, seq]);
    const targets = device.tensor(part(all.targets), [rows.count, seq]);
    const loss = mean(await model.call(ids, { targets }));
    await loss.backward();
    return loss.item();
  });
}

/**
 * Two parameter groups, of which only that of tensors with two or more dimensions has weight decay.
 */
export function optimizerGroups(model: Module) {
  const parameters = model.parameters();
  return [
    { params: parameters.filter((tensor) => tensor.rank >= 2), weightDecay: 0.1 },
    { params: parameters.filter((tensor) => tensor.rank < 2), weightDecay: 0 },
  ];
}
