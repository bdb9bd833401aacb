// Ranks that train a small GPT-2 in one process. Each rank has its own Device over one shared
// backend, and its own end of an in-process group. The tests of fsdp and of ddp-buckets share this.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import type { Gpt2Config, Module } from '@shardweave/nn';
import { type Backend, Device, mean, Trace } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

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

export interface Rank {
  readonly rank: number;
  readonly worldSize: number;
  readonly group: ProcessGroup;
  readonly device: Device;
}

// One backend serves all runs of a process, since training a small model takes less time than
// making a backend.
let shared: Promise<Backend> | undefined;

export function sharedBackend(): Promise<Backend> {
  shared ??= createCpuBackend({ threads: 1 });
  return shared;
}

/** Runs `body` on every rank at once, and returns the results in rank order. */
export async function onRanks<T>(
  worldSize: number,
  body: (rank: Rank) => Promise<T>,
  options: {
    readonly backend?: Backend;
    readonly wrapGroup?: (group: ProcessGroup) => ProcessGroup;
  } = {},
): Promise<T[]> {
  const backend = options.backend ?? (await sharedBackend());
  const groups = createMemoryGroup(worldSize);
  const devices = groups.map(
    (_, rank) => new Device(backend, { seed: 7, trace: new Trace({ rank }) }),
  );
  try {
    return await Promise.all(
      devices.map(async (device, rank) => {
        const group = groups[rank]!;
        return body({ rank, worldSize, group: options.wrapGroup?.(group) ?? group, device });
      }),
    );
  } finally {
    for (const group of groups) {
      await group.close();
    }
    if (options.backend === undefined) {
      for (const device of devices) {
        device.dispose();
      }
    }
  }
}

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
