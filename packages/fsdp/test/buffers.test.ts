// Every rank starts with rank 0's buffers (running statistics).

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Module, stateDict } from '@shardweave/nn';
import { add, type Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';

const LENGTH = 3;

/** This module has a parameter and two buffers whose values differ by rank. */
class Shifted extends Module<[x: Tensor], Tensor> {
  readonly weight: Tensor;
  readonly shift: Tensor;
  readonly count: Tensor;
  constructor(device: Device, seed: number) {
    super(device);
    this.weight = this.parameter('weight', device.full([LENGTH], 1));
    this.shift = this.buffer('shift', device.full([LENGTH], seed + 0.25));
    this.count = this.buffer('count', device.tensor(Int32Array.of(seed), [1]));
  }
  forward(x: Tensor): Tensor {
    return add(add(x, this.weight), this.shift);
  }
}

class Pair extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, parts: readonly Module[]) {
    super(device);
    parts.forEach((part, i) => {
      this.child(String(i), part);
    });
  }
  async forward(x: Tensor): Promise<Tensor> {
    let hidden = x;
    for (const part of this.children().values()) {
      hidden = (await part.call(hidden)) as Tensor;
    }
    return hidden;
  }
}

/** Makes a model with one module in the root and one in an instance of its own. */
function net(rank: Rank, options: Partial<FsdpOptions>): FullyShardedDataParallel {
  const { device, group } = rank;
  const all = { processGroup: group, ...options };
  const inner = new FullyShardedDataParallel(new Shifted(device, 10 + rank.rank), all);
  return new FullyShardedDataParallel(
    new Pair(device, [new Shifted(device, rank.rank), inner]),
    all,
  );
}

async function buffersOf(model: FullyShardedDataParallel): Promise<number[]> {
  const entries = await stateDict(model);
  return ['0.shift', '0.count', '1.shift', '1.count'].map((name) => {
    const { dtype, data } = entries.get(name)!;
    const bytes = data.slice().buffer;
    return (dtype === 'i32' ? new Int32Array(bytes) : new Float32Array(bytes))[0]!;
  });
}

describe('buffers that differ by rank', () => {
  it('are those of rank 0 from the first collective call on, in every instance', async () => {
    const perRank = await onRanks(3, async (rank) => buffersOf(net(rank, {})));
    for (const values of perRank) {
      expect(values).toEqual([0.25, 0, 10.25, 10]);
    }
  });

  it('are what the first forward reads', async () => {
    const perRank = await onRanks(2, async (rank) => {
      const model = net(rank, {});
      return rank.device.scope(async () => {
        const output = (await model.call(rank.device.full([LENGTH], 1))) as Tensor;
        return [...(await output.toArray())];
      });
    });
    for (const values of perRank) {
      expect(values).toEqual([13.5, 13.5, 13.5]);
    }
  });

  it('stay what they are without syncModuleStates', async () => {
    const perRank = await onRanks(2, async (rank) =>
      buffersOf(net(rank, { syncModuleStates: false })),
    );
    expect(perRank).toEqual([
      [0.25, 0, 10.25, 10],
      [1.25, 1, 11.25, 11],
    ]);
  });

  it('reach the other replicas and all their ranks', async () => {
    const perRank = await onRanks(4, async (rank) => {
      const processGroup = await rank.group.split(rank.rank >> 1);
      const replicateGroup = await rank.group.split(rank.rank & 1);
      return buffersOf(net(rank, { processGroup, replicateGroup }));
    });
    for (const values of perRank) {
      expect(values).toEqual([0.25, 0, 10.25, 10]);
    }
  });
});
