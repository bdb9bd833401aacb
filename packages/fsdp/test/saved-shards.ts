// A store that counts, and a model worth saving in parts, for the tests of sharded saves.

import {
  type FsdpOptions,
  FullyShardedDataParallel,
  gatherFullOptimStateDict,
  type ShardIndex,
  type ShardReader,
  type ShardSink,
  saveShards,
  stateDict,
} from '@shardweave/fsdp';
import { AdamW, BatchNorm1d, Linear, type Module, type Optimizer } from '@shardweave/nn';
import { onRanks, optimizerGroups, type Rank } from './ranks.js';
import { DIM, Stack, trainOnce } from './scenarios.js';

/** Files in a map. Counts what is read, and how much of it at once. */
export class Files implements ShardSink, ShardReader {
  readonly files = new Map<string, Uint8Array>();
  readonly reads: { readonly key: string; readonly length: number }[] = [];
  numOpen = 0;
  maxOpen = 0;

  async write(key: string, bytes: Uint8Array): Promise<void> {
    this.files.set(key, bytes.slice());
  }

  byteLength(key: string): number | undefined {
    return this.files.get(key)?.byteLength;
  }

  async read(key: string, into: Uint8Array, { offset }: { offset: number }): Promise<void> {
    this.numOpen += 1;
    this.maxOpen = Math.max(this.maxOpen, this.numOpen);
    await Promise.resolve();
    into.set(this.files.get(key)!.subarray(offset, offset + into.byteLength));
    this.reads.push({ key, length: into.byteLength });
    this.numOpen -= 1;
  }

  /** The same files, counted anew. */
  reader(): Files {
    const reader = new Files();
    for (const [key, bytes] of this.files) {
      reader.files.set(key, bytes);
    }
    return reader;
  }

  index(): ShardIndex {
    return JSON.parse(new TextDecoder().decode(this.files.get('index.json'))) as ShardIndex;
  }
}

/** Weights that shards cut, and buffers. */
export function net({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  const wrap = (module: Module) =>
    new FullyShardedDataParallel(module, { processGroup: group, ...options });
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
  for (const step of steps) {
    await trainOnce(model, { first: rank.rank * count, count }, step);
    await optimizer.step();
    optimizer.zeroGrad();
  }
}

/** Everything whole, as texts: typed arrays compare slowly. */
export async function everything(model: FullyShardedDataParallel, optimizer: Optimizer<object>) {
  const text = ({ shape, data }: { shape: readonly number[]; data: Uint8Array }) =>
    `[${shape.join()}] ${Buffer.from(data).toString('base64')}`;
  const full = await gatherFullOptimStateDict(model, optimizer);
  return {
    model: new Map([...(await stateDict(model))].map(([name, entry]) => [name, text(entry)])),
    state: [...(full?.state ?? [])].map(([name, { step, tensors }]) => {
      return [name, step, [...tensors].map(([part, tensor]) => [part, text(tensor)])];
    }),
    groups: full?.paramGroups,
  };
}

export async function saved(worldSize: number, options: Partial<FsdpOptions> = {}) {
  const files = new Files();
  const [whole] = await onRanks(worldSize, async (rank) => {
    const model = net(rank, options);
    const optimizer = adam(model);
    await train(model, optimizer, { rank, steps: [0, 1] });
    await saveShards(model, files, { optimizer, extra: { step: 2 } });
    return everything(model, optimizer);
  });
  return { files, whole: whole! };
}
