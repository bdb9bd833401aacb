// Residual networks with batch norms are trained in replicas (the specification) or sharded. Each
// rank has its own rows, and two forwards in a step.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { autoWrapBn } from '@shardweave/fsdp/fairscale';
import { BatchNorm1d, checkpoint, type Module, Sgd, SyncBatchNorm } from '@shardweave/nn';
import { add, crossEntropy, type Tensor } from '@shardweave/tensor-core';
import { onRanks, type Rank, weightsOf } from '../../../../tooling/test-kit/index.ts';
import { ResidualMlp } from '../../../../tooling/test-kit/residual-mlp.ts';

const IN = 5;
const CLASSES = 3;
const STEPS = 2;

export interface NetOptions {
  readonly norm: 'batch' | 'sync';
  readonly numForwards: number;
  /** The rows of each rank in each forward. The default is 4. */
  readonly rows?: number;
}

export interface ShardedNetOptions extends NetOptions {
  readonly fsdp?: Partial<FsdpOptions>;
  readonly isWrappingBn?: boolean;
  /** Where each block is checkpointed: inside its wrapper, or around it. By default it is not. */
  readonly checkpoint?: 'inside' | 'outside';
  /**
   * Whether each rank keeps a whole copy, by hybrid sharding over groups of one. The default is
   * false.
   */
  readonly isReplicating?: boolean;
  /** Called with the model before training, and after each backward. */
  readonly inspect?: (model: FullyShardedDataParallel, when: 'made' | 'stepped') => void;
}

/** What one rank ends with. */
export interface NetOutcome {
  readonly losses: readonly number[];
  readonly weights: ReadonlyMap<string, Float32Array>;
  /** The rank's own buffers, since statistics of batches differ. */
  readonly buffers: ReadonlyMap<string, readonly number[]>;
}

/** Trains with the whole net on each rank and gradients averaged over ranks. */
export function trainReplicas(worldSize: number, options: NetOptions): Promise<NetOutcome[]> {
  return onRanks(worldSize, async (rank) => {
    const model = await makeNet(rank, options);
    return train(rank, model, options, async () => {
      for (const parameter of model.parameters()) {
        const bytes = await parameter.grad!.toBytes();
        await rank.group.allReduce(bytes, bytes, { dtype: 'f32', op: 'mean' });
        parameter.grad!.storage.write(bytes);
      }
    });
  });
}

/** Trains with each block, the stem and the head in a unit of their own. */
export function trainSharded(worldSize: number, options: ShardedNetOptions): Promise<NetOutcome[]> {
  return onRanks(worldSize, async (rank) => {
    const net = await makeNet(rank, options);
    const groups =
      options.isReplicating === true
        ? { processGroup: await rank.group.split(rank.rank), replicateGroup: rank.group }
        : { processGroup: rank.group };
    if (options.isWrappingBn === true) {
      await autoWrapBn(net, { processGroup: groups.processGroup, fsdpConfig: groups });
    }
    const wrap = (module: Module<[x: Tensor], Tensor>, name: string) =>
      new FullyShardedDataParallel(module, { ...groups, name, ...options.fsdp });
    for (const [name, child] of net.children()) {
      const layer = child as Module<[x: Tensor], Tensor>;
      if (options.checkpoint === 'inside') {
        net.replaceChild(name, wrap(checkpoint(layer), name));
      } else if (options.checkpoint === 'outside') {
        net.replaceChild(name, checkpoint(wrap(layer, name)));
      } else {
        net.replaceChild(name, wrap(layer, name));
      }
    }
    const model = wrap(net, 'root');
    options.inspect?.(model, 'made');
    return train(rank, model, options, async () => options.inspect?.(model, 'stepped'));
  });
}

async function makeNet({ device, group }: Rank, options: NetOptions): Promise<ResidualMlp> {
  const statistics = await group.split(0);
  return new ResidualMlp(device, {
    inFeatures: IN,
    width: 6,
    numBlocks: 2,
    numClasses: CLASSES,
    seed: 5,
    norm: (on, numFeatures) =>
      options.norm === 'batch'
        ? new BatchNorm1d(on, { numFeatures })
        : new SyncBatchNorm(on, { numFeatures, group: statistics }),
  });
}

async function train(
  rank: Rank,
  model: Module,
  options: NetOptions,
  afterBackward: () => Promise<void>,
): Promise<NetOutcome> {
  const { device } = rank;
  const optimizer = new Sgd(model.parameters(), { lr: 0.2, momentum: 0.9 });
  const losses: number[] = [];
  for (let step = 0; step < STEPS; step++) {
    const loss = await device.scope(async () => {
      let total: Tensor | undefined;
      for (let i = 0; i < options.numForwards; i++) {
        const batch = rowsOf(rank, step * options.numForwards + i, options.rows ?? 4);
        const part = crossEntropy((await model.call(batch.x)) as Tensor, batch.targets);
        total = total === undefined ? part : add(total, part);
      }
      await total!.backward();
      return total!.item();
    });
    losses.push(loss);
    await afterBackward();
    await optimizer.step();
    optimizer.zeroGrad();
  }
  const buffers = new Map<string, number[]>();
  for (const [name, buffer] of model.namedBuffers()) {
    buffers.set(name, [...(await buffer.toArray())]);
  }
  const weights = await weightsOf(model);
  for (const name of buffers.keys()) {
    weights.delete(name);
  }
  return { losses, weights, buffers };
}

/**
 * Returns this rank's part of a batch. The rows of all ranks are one sequence. They use squares
 * because the sine of equal steps spans only two dimensions: a channel that nearly cancels them
 * would have a variance of a thousandth, and normalization would multiply every rounding by thirty.
 */
function rowsOf({ device, rank, worldSize }: Rank, batch: number, rows: number) {
  const first = (batch * worldSize + rank) * rows;
  const x = Float32Array.from(
    { length: rows * IN },
    (_, i) => 2 * Math.sin(0.37 * (first * IN + i) ** 2),
  );
  const targets = Int32Array.from({ length: rows }, (_, i) => (first + i) % CLASSES);
  return { x: device.tensor(x, [rows, IN]), targets: device.tensor(targets) };
}
