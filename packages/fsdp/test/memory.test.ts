// The ledger's bytes of each tag in each phase exactly equal docs/memory-model.md, padding
// included.

import { type FullyShardedDataParallel, shardLayout } from '@shardweave/fsdp';
import { AdamW, type Gpt2Config } from '@shardweave/nn';
import { byteSize, type MemoryBytes, mean } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, optimizerGroups, type Rank, tokens } from '../../../tooling/test-kit/index.ts';
import { shardedGpt2 } from './support/sharding.js';

const ROWS = 2; // This is the number on each rank.
const CONFIG = { vocab_size: 50, n_positions: 8, n_embd: 12, n_layer: 3, n_head: 2 };

type Phase = 'idle' | 'afterForward' | 'peak' | 'afterStep';
interface Options {
  readonly worldSize: number;
  readonly dtype: 'f32' | 'f16' | 'bf16';
  readonly isReducedInF32: boolean;
  readonly isResharding: boolean;
  readonly isCheckpointing?: boolean;
  readonly config: typeof CONFIG;
}

describe.each([
  { dtype: 'f32', isReducedInF32: true, isResharding: true },
  { dtype: 'f32', isReducedInF32: true, isResharding: false },
  { dtype: 'bf16', isReducedInF32: false, isResharding: true },
  { dtype: 'f16', isReducedInF32: true, isResharding: false },
  { dtype: 'f32', isReducedInF32: true, isResharding: true, isCheckpointing: true },
  { dtype: 'bf16', isReducedInF32: false, isResharding: false, isCheckpointing: true },
] as const)(
  '$dtype, f32 reduction $isReducedInF32, resharding $isResharding, checkpointing $isCheckpointing',
  (cell) => {
    // Attention weights dominate the second shape, and the vocabulary dominates the third.
    it.each([
      CONFIG,
      { ...CONFIG, n_embd: 4 },
      { ...CONFIG, vocab_size: 400 },
      { ...CONFIG, n_embd: 4, n_positions: 32 },
    ])('$n_embd wide, $vocab_size words, $n_positions tokens a row', async (config) => {
      await expectPredicted({ ...cell, config, worldSize: 4 });
    });
  },
);

const WORLDS = process.env.SHARDWEAVE_LONG === '1' ? [1, 2, 3, 5, 6, 7, 8] : [1, 2, 3, 5, 8];

describe.each(WORLDS)('the ledger of each phase, over %i ranks', (worldSize) => {
  const config = { ...CONFIG, n_embd: 4, n_layer: 2 };

  it.each([
    { dtype: 'f32', isReducedInF32: true, isResharding: true },
    { dtype: 'f32', isReducedInF32: true, isResharding: false },
    { dtype: 'bf16', isReducedInF32: false, isResharding: true },
    { dtype: 'bf16', isReducedInF32: false, isResharding: false },
    { dtype: 'f16', isReducedInF32: true, isResharding: true },
  ] as const)('$dtype, f32 reduction $isReducedInF32, resharding $isResharding', async (cell) => {
    await expectPredicted({ ...cell, config, worldSize });
  });
});

it('holds live bytes and buffers flat over 100 steps, and none after dispose', async () => {
  const config = { ...CONFIG, vocab_size: 30, n_embd: 4, n_layer: 1 };
  const cell = { dtype: 'f32', isReducedInF32: true, isResharding: true } as const;
  const options: Options = { ...cell, config, worldSize: 2 };
  await onRanks(2, async (rank) => {
    const { model, step, dispose } = training(rank, options);
    const seen = new Set<string>();
    for (let i = 0; i < 100; i++) {
      await step(i);
      const { live, reservedBytes, bufferCount } = rank.device.memory();
      if (i > 0) {
        seen.add(JSON.stringify([live, reservedBytes, bufferCount]));
      }
    }
    expect([...seen]).toHaveLength(1);
    dispose();
    expect(model.instances()).toHaveLength(config.n_layer + 1);
    expect(rank.device.memory().live.total).toBe(0);
    rank.device.dispose();
    expect(rank.device.memory().bufferCount).toBe(0);
  });
});

// ---- measured ----------------------------------------------------------------------------------

async function expectPredicted(options: Options): Promise<void> {
  const perRank = await onRanks(options.worldSize, (rank) => measured(rank, options));
  perRank.forEach((phases, rank) => {
    expect(phases, `rank ${rank}`).toEqual(predicted(options, rank));
  });
}

async function measured(rank: Rank, options: Options): Promise<Record<Phase, object>> {
  const { step } = training(rank, options);
  await step(0); // The optimizer's state comes with the first step.
  const { device } = rank;
  device.ledger.resetPeak();
  const idle = device.ledger.live();
  let afterForward: MemoryBytes = idle;
  await step(1, () => {
    afterForward = device.ledger.live();
  });
  return {
    idle: tags(idle),
    afterForward: tags(afterForward),
    peak: tags(device.ledger.peak()),
    afterStep: tags(device.ledger.live()),
  };
}

/**
 * Returns the bytes by tag without the total, since a peak's total is not the sum of its tags'
 * peaks.
 */
function tags({ total: _, ...bytes }: MemoryBytes): object {
  return bytes;
}

function training(rank: Rank, options: Options) {
  const { device } = rank;
  const seq = options.config.n_positions;
  const { model } = shardedGpt2(rank, {
    config: options.config satisfies Partial<Gpt2Config>,
    isCheckpointing: options.isCheckpointing ?? false,
    fsdp: {
      reshardAfterForward: options.isResharding,
      ...(options.dtype === 'f32'
        ? {}
        : {
            mixedPrecision: true,
            computeDType: options.dtype,
            fp32ReduceScatter: options.isReducedInF32,
          }),
    },
  });
  const optimizer = new AdamW(optimizerGroups(model), { lr: 1e-2 });
  const step = (number: number, afterForward?: () => void) =>
    device.scope(async () => {
      const all = tokens(number, ROWS, seq, options.config.vocab_size);
      const ids = device.tensor(all.ids, [ROWS, seq]);
      const targets = device.tensor(all.targets, [ROWS, seq]);
      // The scope leaves the graph alone to hold the logits.
      const loss = await device.scope(async () => mean(await model.call(ids, { targets })));
      afterForward?.();
      await loss.backward();
      await optimizer.step();
      optimizer.zeroGrad();
    });
  const dispose = () => {
    optimizer.dispose();
    model.dispose();
  };
  return { model: model as FullyShardedDataParallel, step, dispose };
}

// ---- predicted ---------------------------------------------------------------------------------

function predicted(options: Options, rank: number): Record<Phase, object> {
  const { dtype, isReducedInF32, isResharding, config, worldSize: W } = options;
  const e = byteSize(dtype);
  const reduced = isReducedInF32 ? 4 : e;
  const { vocab_size: V, n_positions: positions, n_embd: C, n_layer: L } = config;

  // The parameters of each unit: the root has the embeddings and the last norm, and a block its
  // twelve.
  const rootLayout = shardLayout([V * C, positions * C, C, C], W);
  const sizes = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];
  const blockLayout = shardLayout(sizes, W);
  const [root, block] = [rootLayout.shardLength, blockLayout.shardLength];
  const shards = root + L * block;
  const whole = W * shards;
  const rootAndBlock = W * (root + block);

  // Ops write the first gradient of a parameter into the unit's gradient where the dtypes agree.
  const isInPlace = e === reduced;
  const activation =
    options.isCheckpointing === true
      ? checkpointedActivations(config, e, isInPlace)
      : activations(config, e, isInPlace);
  // A rank whose shard of a unit is only padding steps nothing there, and has no state.
  const stepped =
    (rank * root < rootLayout.elementCount ? root : 0) +
    (rank * block < blockLayout.elementCount ? L * block : 0);
  const resting = { parameter: 4 * shards, optimizer: 8 * stepped, gradient: 0, staging: 0 };
  const idle = { ...resting, gathered: 0, activation: 0 };
  // One process computes with its own shards unless they have another dtype.
  const isGathering = W > 1 || dtype !== 'f32';
  return {
    idle,
    afterForward: {
      ...resting,
      gathered: isGathering ? e * (isResharding ? W * root : whole) : 0,
      activation: activation.afterForward,
    },
    peak: {
      ...resting,
      gathered: isGathering ? e * (isResharding ? rootAndBlock : whole) : 0,
      gradient: peakOfGradients({ W, L, root, block, reduced }),
      activation: activation.peak,
      // One shard is staged at a time: cast before it is published, or reduced when it comes in.
      staging: W > 1 ? Math.max(root, block) * Math.max(e, reduced) : 0,
    },
    afterStep: idle,
  };
}

function peakOfGradients(sizes: {
  readonly W: number;
  readonly L: number;
  readonly root: number;
  readonly block: number;
  /** Bytes of an element on the wire. */
  readonly reduced: number;
}): number {
  const { W, L, root, block, reduced } = sizes;
  const shards = 4 * (root + L * block);
  // One process keeps a unit's gradient as the shard's, or converts it while it is there.
  if (W === 1 && reduced === 4) {
    return shards;
  }
  if (W === 1) {
    return reduced * root + 4 * L * block + Math.max(reduced * block, 4 * root);
  }
  // The root's full gradient lives from the head to the embeddings, and a block's while the block
  // runs.
  return Math.max(reduced * W * (root + block), shards);
}

function activations(
  config: typeof CONFIG,
  e: number,
  isInPlace: boolean,
): { afterForward: number; peak: number } {
  const { vocab_size: V, n_embd: C, n_layer: L, n_head: H, n_positions: T } = config;
  const n = ROWS * T; // These are the tokens of a rank.
  const norm = 8 * n; // A norm keeps mean and rstd in f32.
  const inputs = 8 * n + 4; // These are ids, targets and loss.
  const places = 4 * T;
  // Attention keeps the block's input, ln_1, qkv, attended and stats.
  const attention = e * n * (C + C + 3 * C + C) + 8 * n * H + norm;
  const block = attention + e * n * (C + C + 4 * C + 4 * C) + norm; // The rest is from sum to gelu.
  const headNorm = e * n * (C + C) + norm;
  const head = headNorm + 4 * n * V + 4 * n; // These are the logits and the log-sum-exp in f32.
  const afterForward = inputs + places + L * block + head;

  const unlessInPlace = (elements: number) => (isInPlace ? 0 : elements);
  const running = inputs + places + 4; // The last 4 bytes are the backward's seed.
  const below = running + (L - 1) * block;
  const backward = [
    // This is the head: gradients of losses, logits, its input and the table.
    running + L * block + head + 4 * n + 4 * n * V + e * (n * C + unlessInPlace(V * C)),
    // This is c_proj: dy, dx, dWeight, dBias.
    below + block + e * (n * C + n * 4 * C + unlessInPlace(4 * C * C + C)),
    running + e * (n * C + V * C), // This is the token table.
  ];
  return { afterForward, peak: Math.max(...backward) };
}

/**
 * Returns the bytes of activations where blocks keep only their inputs and run again in backward.
 */
function checkpointedActivations(
  config: typeof CONFIG,
  e: number,
  isInPlace: boolean,
): { afterForward: number; peak: number } {
  const { vocab_size: V, n_embd: C, n_layer: L, n_head: H, n_positions: T } = config;
  const n = ROWS * T;
  const norm = 8 * n;
  const inputs = 8 * n + 4;
  const places = 4 * T;
  const x = e * n * C; // This is one block's input, output, or a gradient of them.
  const attention = e * n * (C + C + 3 * C + C) + 8 * n * H + norm;
  const block = attention + e * n * (C + C + 4 * C + 4 * C) + norm;
  const headNorm = e * n * (C + C) + norm;
  const head = headNorm + 4 * n * V + 4 * n;
  const afterForward = inputs + places + L * x + head;

  const unlessInPlace = (elements: number) => (isInPlace ? 0 : elements);
  const running = inputs + places + 4;
  // The second run of the last block holds what it saves (its input too), its output, the output's
  // gradient, which the first addition passes on, and the one-element root of the inner backward.
  const again = running + (L - 1) * x + block + x + 4;
  const backward = [
    // This is the head.
    running + L * x + head + 4 * n + 4 * n * V + e * (n * C + unlessInPlace(V * C)),
    // This is c_proj: dy, dx, dWeight, dBias.
    again + e * (n * C + n * 4 * C + unlessInPlace(4 * C * C + C)),
    running + e * (n * C + V * C), // This is the token table.
  ];
  return { afterForward, peak: Math.max(...backward) };
}
