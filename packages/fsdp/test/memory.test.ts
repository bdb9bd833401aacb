// The ledger's bytes of each tag in each phase equal docs/memory-model.md, padding included, exactly.

import { type FullyShardedDataParallel, flatLayout } from '@shardweave/fsdp';
import { AdamW, type Gpt2Config } from '@shardweave/nn';
import { byteSize, crossEntropy, type MemoryBytes } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, optimizerGroups, type Rank, shardedGpt2, tokens } from './ranks.js';

const WORLD_SIZE = 4;
const ROWS = 2; // a rank
const CONFIG = { vocab_size: 50, n_positions: 8, n_embd: 12, n_layer: 3, n_head: 2 };

type Phase = 'idle' | 'afterForward' | 'peak';
interface Options {
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
    // The second shape is dominated by attention weights, the third by the vocabulary.
    it.each([
      CONFIG,
      { ...CONFIG, n_embd: 4 },
      { ...CONFIG, vocab_size: 400 },
      { ...CONFIG, n_embd: 4, n_positions: 32 },
    ])('$n_embd wide, $vocab_size words, $n_positions tokens a row', async (config) => {
      const options = { ...cell, config };
      const perRank = await onRanks(WORLD_SIZE, (rank) => measured(rank, options));
      perRank.forEach((phases, rank) => {
        expect(phases, `rank ${rank}`).toEqual(predicted(options, rank));
      });
    });
  },
);

it('holds live bytes and buffers flat over 100 steps, and none after dispose', async () => {
  const config = { ...CONFIG, vocab_size: 30, n_embd: 4, n_layer: 1 };
  const options: Options = { dtype: 'f32', isReducedInF32: true, isResharding: true, config };
  await onRanks(2, async (rank) => {
    const { model, step, dispose } = training(rank, options);
    const seen = new Set<string>();
    for (let i = 0; i < 100; i++) {
      await step(i);
      const { live, reservedBytes, bufferCount } = rank.device.memory();
      if (i > 0) seen.add(JSON.stringify([live, reservedBytes, bufferCount]));
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

async function measured(rank: Rank, options: Options): Promise<Record<Phase, object>> {
  const { step } = training(rank, options);
  await step(0); // optimizer state comes with the first step
  const { device } = rank;
  device.ledger.resetPeak();
  const idle = device.ledger.live();
  let afterForward: MemoryBytes = idle;
  await step(1, () => {
    afterForward = device.ledger.live();
  });
  return { idle: tags(idle), afterForward: tags(afterForward), peak: tags(device.ledger.peak()) };
}

/** Totals apart: a peak's total is not the sum of its tags' peaks. */
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
      // A scope of its own, so that the graph alone holds the logits.
      const loss = await device.scope(async () => crossEntropy(await model.call(ids), targets));
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
  const { dtype, isReducedInF32, isResharding, config } = options;
  const e = byteSize(dtype);
  const reduced = isReducedInF32 ? 4 : e;
  const { vocab_size: V, n_positions: positions, n_embd: C, n_layer: L } = config;

  // Parameters by unit: the root has the embeddings and the last norm, a block its twelve.
  const rootLayout = flatLayout([V * C, positions * C, C, C], WORLD_SIZE);
  const sizes = [C, C, 3 * C * C, 3 * C, C * C, C, C, C, 4 * C * C, 4 * C, 4 * C * C, C];
  const blockLayout = flatLayout(sizes, WORLD_SIZE);
  const [root, block] = [rootLayout.shardLength, blockLayout.shardLength];
  const shards = root + L * block;
  const whole = WORLD_SIZE * shards;
  const rootAndBlock = WORLD_SIZE * (root + block);

  const activation =
    options.isCheckpointing === true ? checkpointedActivations(config, e) : activations(config, e);
  // A rank whose shard of a unit is all padding has nothing to step there, and no state.
  const stepped =
    (rank * root < rootLayout.elementCount ? root : 0) +
    (rank * block < blockLayout.elementCount ? L * block : 0);
  const resting = { parameter: 4 * shards, optimizer: 8 * stepped, gradient: 0, staging: 0 };
  return {
    idle: { ...resting, gathered: 0, activation: 0 },
    afterForward: {
      ...resting,
      gathered: e * (isResharding ? WORLD_SIZE * root : whole),
      activation: activation.afterForward,
    },
    peak: {
      ...resting,
      gathered: e * (isResharding ? rootAndBlock : whole),
      // The root's full gradient lives from the head to the embeddings, a block's while it runs.
      gradient: Math.max(reduced * rootAndBlock, 4 * shards),
      activation: activation.peak,
      // One shard at a time: cast for publishing, or reduced on its way in.
      staging: Math.max(root, block) * Math.max(e, reduced),
    },
  };
}

function activations(config: typeof CONFIG, e: number): { afterForward: number; peak: number } {
  const { vocab_size: V, n_embd: C, n_layer: L, n_head: H, n_positions: T } = config;
  const n = ROWS * T; // tokens of a rank
  const P = H * T; // attention weights a token
  const norm = 8 * n; // mean and rstd in f32
  const inputs = 8 * n + 4; // ids, targets, loss
  const places = 4 * T;
  const attention = e * n * (C + C + 3 * C + P) + norm; // block input, ln_1, qkv, weights
  const block = attention + e * n * (C + C + C + 4 * C + 4 * C) + norm; // attended ... gelu
  const headNorm = e * n * (C + C) + norm;
  const head = headNorm + e * n * V + 4 * n; // logits, log-sum-exp
  const afterForward = inputs + places + L * block + head;

  const running = inputs + places + 4; // and the backward's seed
  const below = running + (L - 1) * block;
  const backward = [
    running + L * block + head + 4 * n + e * n * V, // cross-entropy: gradients of losses and logits
    running + L * block + headNorm + e * (n * V + n * C + V * C), // head: dLogits, dx, dWeight
    below + block + e * (n * C + n * 4 * C + 4 * C * C + C), // c_proj: dy, dx, dWeight, dBias
    below + attention + e * n * (C + C + 3 * C + P), // attention: residual, dy, dQkv, dWeights
    running + e * (n * C + V * C), // token table
  ];
  return { afterForward, peak: Math.max(...backward) };
}

/** Blocks keep their inputs alone; each runs again in backward. */
function checkpointedActivations(
  config: typeof CONFIG,
  e: number,
): { afterForward: number; peak: number } {
  const { vocab_size: V, n_embd: C, n_layer: L, n_head: H, n_positions: T } = config;
  const n = ROWS * T;
  const P = H * T;
  const norm = 8 * n;
  const inputs = 8 * n + 4;
  const places = 4 * T;
  const x = e * n * C; // one block's input, output, or a gradient of them
  const attention = e * n * (C + C + 3 * C + P) + norm;
  const block = attention + e * n * (C + C + C + 4 * C + 4 * C) + norm;
  const headNorm = e * n * (C + C) + norm;
  const head = headNorm + e * n * V + 4 * n;
  const afterForward = inputs + places + L * x + head;

  const running = inputs + places + 4;
  // The second run of the last block: what it saves (its input among it), its output, the output's
  // gradient, which the first addition passes on, and the one-element root of the inner backward.
  const again = running + (L - 1) * x + block + x + 4;
  const backward = [
    running + L * x + head + 4 * n + e * n * V, // cross-entropy
    running + L * x + headNorm + e * (n * V + n * C + V * C), // head
    again + e * (n * C + n * 4 * C + 4 * C * C + C), // c_proj: dy, dx, dWeight, dBias
    again - block + attention + x + e * n * (C + C + 3 * C + P), // attention, and dy beside its residual
    running + e * (n * C + V * C), // token table
  ];
  return { afterForward, peak: Math.max(...backward) };
}
