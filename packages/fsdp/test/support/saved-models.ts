// The tests of saves share a model that is worth saving in parts, and readers that count.

import { openSave, type PieceReader, type PieceStore, piecesIn } from '@shardweave/checkpoint';
import type { FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { gatherFullOptimStateDict } from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  BatchNorm1d,
  Linear,
  type Module,
  type Optimizer,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import {
  DIM,
  onRanks,
  optimizerGroups,
  type Rank,
  Stack,
  stepped,
  textOf,
  trainOnce,
} from '../../../../tooling/test-kit/index.ts';
import { wrapIn } from './sharding.js';

/** Returns a destination for saves in host memory. */
export function place(): PieceStore {
  return piecesIn(createHostStore());
}

export interface CountingReader extends PieceReader {
  readonly reads: { readonly file: string; readonly length: number }[];
  maxOpen: number;
}

export function counting(store: PieceReader): CountingReader {
  let numOpen = 0;
  const reader: CountingReader = {
    description: store.description,
    byteLength: (file) => store.byteLength(file),
    read: async (file, into, options) => {
      numOpen += 1;
      reader.maxOpen = Math.max(reader.maxOpen, numOpen);
      await store.read(file, into, options);
      reader.reads.push({ file, length: into.byteLength });
      numOpen -= 1;
    },
    reads: [],
    maxOpen: 0,
  };
  return reader;
}

/** Returns what a save holds, without its id, which differs from save to save. */
export async function contentsOf(store: PieceStore): Promise<unknown> {
  const { id, tensors, optimizer, extra } = await openSave(store);
  const files = (await store.files()).filter((file) => file.startsWith(id)).sort();
  const bytes = await Promise.all(
    files.map(async (file) => {
      const content = new Uint8Array((await store.byteLength(file))!);
      await store.read(file, content, { offset: 0 });
      return [file, Buffer.from(content).toString('base64')];
    }),
  );
  const text = JSON.stringify([bytes, [...tensors], optimizer, extra]);
  return JSON.parse(text.replaceAll(id, 'save'));
}

/** Returns the names of the parameters and buffers in a save. */
export async function namesIn(store: PieceStore): Promise<string[]> {
  const { tensors } = await openSave(store);
  return [...tensors.values()].flatMap(({ kind, name }) => (kind === 'state' ? [] : [name])).sort();
}

/** Returns a model with buffers whose weights shards cut. */
export function net({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn({ group }, options);
  const linear = (inFeatures: number, outFeatures: number) =>
    new Linear(device, { inFeatures, outFeatures });
  return wrap(
    new Stack(device, [
      linear(DIM, 45),
      wrap(linear(45, 41)),
      wrap(new BatchNorm1d(device, { numFeatures: 41 })),
    ]),
  );
}

export function adam(model: Module): AdamW {
  return new AdamW(optimizerGroups(model), { lr: 1e-2 });
}

export async function train(
  model: Module,
  optimizer: Optimizer<object>,
  options: { readonly rank: Rank; readonly steps: readonly number[] },
): Promise<void> {
  const { rank, steps } = options;
  const count = 24 / rank.worldSize;
  await stepped(optimizer, steps, (step) =>
    trainOnce(model, { first: rank.rank * count, count }, step),
  );
}

/** Returns the whole state of model and optimizer as texts, since typed arrays compare slowly. */
export async function everything(model: FullyShardedDataParallel, optimizer: Optimizer<object>) {
  const full = await gatherFullOptimStateDict(model, optimizer);
  return {
    model: textOf(await stateDict(model)),
    state: [...(full?.state ?? [])].map(([name, { step, tensors }]) => {
      return [name, step, textOf(tensors)];
    }),
    groups: full?.paramGroups,
  };
}

export async function saved(worldSize: number, options: Partial<FsdpOptions> = {}) {
  const files = place();
  const [whole] = await onRanks(worldSize, async (rank) => {
    const model = net(rank, options);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0, 1] });
    await saveCheckpoint(model, files, { optimizer, extra: { step: 2 } });
    return everything(model, optimizer);
  });
  return { files, whole: whole! };
}
