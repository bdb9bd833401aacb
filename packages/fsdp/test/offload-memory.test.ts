// While everything rests on the host, the device's memory holds nothing between steps, and one flat
// parameter at a time within one. The formulas of docs/memory-model.md hold exactly.

import { type FsdpOptions, shardLayout } from '@shardweave/fsdp';
import { AdamW, gradNorm, type Module } from '@shardweave/nn';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { byteSize, type MemoryBytes } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  forwardBackward,
  onRanks,
  optimizerGroups,
  type Rank,
} from '../../../tooling/test-kit/index.ts';
import { shardedGpt2 } from './support/sharding.js';

const CONFIG = { vocab_size: 50, n_positions: 8, n_embd: 12, n_layer: 3, n_head: 2 };

interface Cell {
  readonly worldSize: number;
  readonly dtype: 'f32' | 'bf16';
  readonly isResharding: boolean;
}

const CELLS: readonly Cell[] = [1, 2, 4].flatMap((worldSize) =>
  (['f32', 'bf16'] as const).flatMap((dtype) =>
    [true, false].map((isResharding) => ({ worldSize, dtype, isResharding })),
  ),
);

describe.each(CELLS)('$worldSize ranks, $dtype, resharding $isResharding', (cell) => {
  it('holds on the device what the formulas say, and nothing at rest', async () => {
    const perRank = await onRanks(cell.worldSize, (rank) => measured(rank, cell));
    perRank.forEach((phases, rank) => {
      expect(phases, `rank ${rank}`).toEqual(predicted(cell, rank));
    });
  });
});

it('a norm brings one gradient at a time, and writes nothing', () =>
  onRanks(2, async (rank) => {
    const writes: string[] = [];
    const store = recording(createHostStore(), writes);
    const { model } = await stepped(rank, { offloadConfig: { store } });
    await run(rank, model, 2);
    const { ledger } = rank.device;
    ledger.resetPeak();
    writes.length = 0;
    expect(await gradNorm(model)).toBeGreaterThan(0);
    const { root, block } = layouts(2);
    const largest = Math.max(root.shardLength, block.shardLength);
    expect(ledger.peak()).toMatchObject({ gradient: 4 * largest, parameter: 0, optimizer: 0 });
    expect(writes).toEqual([]);
  }));

it('holds live bytes and buffers flat over 30 steps', () =>
  onRanks(2, async (rank) => {
    const { model, optimizer } = await stepped(rank, { moveParamsToCpu: true });
    const seen = new Set<string>();
    for (let step = 1; step < 30; step++) {
      await run(rank, model, step);
      await optimizer.step();
      optimizer.zeroGrad();
      const { live, reservedBytes, bufferCount } = rank.device.memory();
      seen.add(JSON.stringify([live, reservedBytes, bufferCount]));
    }
    expect(seen.size).toBe(1);
  }));

async function stepped(rank: Rank, fsdp: Partial<FsdpOptions>) {
  const { model } = shardedGpt2(rank, { config: CONFIG, fsdp });
  const optimizer = new AdamW(optimizerGroups(model), { lr: 1e-2 });
  await run(rank, model, 0);
  await optimizer.step(); // The optimizer's state comes with the first step.
  optimizer.zeroGrad();
  return { model, optimizer };
}

function run({ device, rank, worldSize }: Rank, model: Module, step: number) {
  const rows = { batch: 2 * worldSize, first: 2 * rank, count: 2 };
  return forwardBackward(device, model, step, rows, { vocab: CONFIG.vocab_size });
}

async function measured(rank: Rank, { dtype, isResharding }: Cell): Promise<object> {
  const mixed = dtype === 'f32' ? {} : { mixedPrecision: true, computeDType: dtype };
  const { model, optimizer } = await stepped(rank, {
    reshardAfterForward: isResharding,
    moveParamsToCpu: true,
    ...mixed,
  });
  const { ledger } = rank.device;
  ledger.resetPeak();
  const idle = ledger.live();
  await run(rank, model, 1);
  const afterBackward = ledger.live();
  await optimizer.step();
  const afterStep = ledger.live();
  optimizer.zeroGrad();
  const phases = { idle, afterBackward, afterStep, peak: ledger.peak() };
  return Object.fromEntries(Object.entries(phases).map(([name, bytes]) => [name, tags(bytes)]));
}

function tags({ parameter, gathered, gradient, optimizer, staging }: MemoryBytes): object {
  return { parameter, gathered, gradient, optimizer, staging };
}

function layouts(worldSize: number) {
  const { vocab_size: V, n_positions: T, n_embd: C } = CONFIG;
  const sizes = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];
  return {
    root: shardLayout([V * C, T * C, C, C], worldSize),
    block: shardLayout(sizes, worldSize),
  };
}

function predicted({ worldSize: W, dtype, isResharding }: Cell, rank: number): object {
  const { root, block } = layouts(W);
  const e = byteSize(dtype);
  const [r, b] = [root.shardLength, block.shardLength];
  // A rank whose shard is only padding has nothing to bring.
  const ownShards = [root, block]
    .filter(({ shardLength, elementCount }) => rank * shardLength < elementCount)
    .map(({ shardLength }) => shardLength);
  const largest = Math.max(0, ...ownShards);
  const rest = { parameter: 0, gathered: 0, gradient: 0, optimizer: 0, staging: 0 };
  const gathered = isResharding ? r + b : r + CONFIG.n_layer * b;
  return {
    idle: rest,
    afterBackward: rest,
    afterStep: rest,
    peak: {
      parameter: 4 * largest,
      gathered: e * W * gathered,
      gradient: Math.max(e * W * (r + b), 4 * largest),
      optimizer: 8 * largest,
      staging: 0,
    },
  };
}

/** Returns a store that notes the keys of its writes. */
function recording(store: ShardStore, writes: string[]): ShardStore {
  return new Proxy(store, {
    get: (target, name) => {
      if (name === 'write') {
        return (key: string, bytes: Uint8Array) => {
          writes.push(key);
          return target.write(key, bytes);
        };
      }
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
