// Runs a test's body once per rank in one process: each rank its own Device over one backend, and
// its own end of an in-process group.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  AdamW,
  checkpoint,
  clipGradNorm,
  Gpt2,
  type Gpt2Block,
  type Gpt2Config,
  type Module,
  Sgd,
} from '@shardweave/nn';
import { type Backend, crossEntropy, Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll } from 'vitest';

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

// One backend for all runs of a file: a small model trains in less time than it takes to make one.
let fileBackend: Promise<Backend> | undefined;
afterAll(async () => (await fileBackend)?.dispose());

function backendOfFile(): Promise<Backend> {
  fileBackend ??= createCpuBackend({ threads: 1 });
  return fileBackend;
}

/** Runs `body` on every rank at once and returns what each gave. */
export async function onRanks<T>(
  worldSize: number,
  body: (rank: Rank) => Promise<T>,
  options: {
    readonly backend?: Backend;
    readonly wrapGroup?: (group: ProcessGroup) => ProcessGroup;
  } = {},
): Promise<T[]> {
  const backend = options.backend ?? (await backendOfFile());
  const groups = createMemoryGroup(worldSize);
  const devices = groups.map(() => new Device(backend, { seed: 7 }));
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

/** A GPT-2 with each block and the root wrapped. */
export function shardedGpt2(
  { device, group }: Rank,
  options: {
    readonly config?: Partial<Gpt2Config>;
    readonly fsdp?: Partial<FsdpOptions>;
    /** Checkpoint each block inside its sharding. Default false. */
    readonly isCheckpointing?: boolean;
    /** Default false. */
    readonly deferInit?: boolean;
  } = {},
): { model: FullyShardedDataParallel; gpt2: Gpt2 } {
  const { deferInit = false } = options;
  const gpt2 = new Gpt2(device, { ...TINY, ...options.config }, { seed: 3, deferInit });
  const names = [...gpt2.children().keys()];
  for (const name of names.slice(1, -1)) {
    const bare = gpt2.children().get(name)! as Gpt2Block;
    const block = options.isCheckpointing === true ? checkpoint(bare) : bare;
    gpt2.replaceChild(
      name,
      new FullyShardedDataParallel(block, {
        processGroup: group,
        name: `block ${name}`,
        ...options.fsdp,
      }),
    );
  }
  const model = new FullyShardedDataParallel(gpt2, {
    processGroup: group,
    name: 'root',
    ...options.fsdp,
  });
  return { model, gpt2 };
}

/** Token ids of a global batch, each row counting up by 5 from its own start: learnable. */
export function tokens(step: number, batch: number, seq: number, vocab: number) {
  const cut = (shift: number) =>
    Int32Array.from({ length: batch * seq }, (_, i) => {
      const row = Math.floor(i / seq);
      return (row * 11 + step * 3 + 5 * ((i % seq) + shift)) % vocab;
    });
  return { ids: cut(0), targets: cut(1) };
}

/** Rows [first, first + rows) of a global batch's loss, mean over tokens; runs backward. */
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
    const loss = crossEntropy(await model.call(ids), targets);
    await loss.backward();
    return loss.item();
  });
}

/** An unsharded run: the specification of every sharded one. */
export async function singleRun(
  steps: number,
  batch: number,
  options: {
    readonly optimizer?: 'adamw' | 'sgd';
    readonly dropout?: number;
    readonly clip?: number;
    readonly backend?: Backend;
  } = {},
): Promise<{ losses: number[]; weights: Map<string, Float32Array> }> {
  const backend = options.backend ?? (await backendOfFile());
  const device = new Device(backend, { seed: 7 });
  const dropout = options.dropout ?? 0;
  const model = new Gpt2(
    device,
    { ...TINY, embd_pdrop: dropout, attn_pdrop: dropout },
    { seed: 3 },
  );
  const groups = optimizerGroups(model);
  const optimizer =
    options.optimizer === 'sgd'
      ? new Sgd(groups, { lr: 0.1, momentum: 0.9 })
      : new AdamW(groups, { lr: 1e-2 });
  const losses: number[] = [];
  for (let step = 0; step < steps; step++) {
    const rows = { batch, first: 0, count: batch };
    losses.push(await forwardBackward(device, model, step, rows));
    await device.scope(async () => {
      const { clip } = options;
      if (clip === undefined) {
        await optimizer.step();
      } else {
        await optimizer.step({ gradScale: clipGradNorm(model.parameters(), clip).scale });
      }
    });
    optimizer.zeroGrad();
  }
  const weights = new Map<string, Float32Array>();
  for (const [name, tensor] of model.namedParameters()) {
    weights.set(name, (await tensor.toArray()) as Float32Array);
  }
  if (options.backend === undefined) {
    device.dispose();
  }
  return { losses, weights };
}

/** Decay on tensors of two or more dimensions only. */
export function optimizerGroups(model: Module) {
  const parameters = model.parameters();
  return [
    { params: parameters.filter((tensor) => tensor.rank >= 2), weightDecay: 0.1 },
    { params: parameters.filter((tensor) => tensor.rank < 2), weightDecay: 0 },
  ];
}
