// Attention is compared with a plain composition of other ops, and its memory must grow with the
// number of rows, not with its square.

import {
  type AttentionOptions,
  add,
  broadcastTo,
  Device,
  dropout,
  headsOf,
  matmul,
  mul,
  reshape,
  scaledDotProductAttention,
  slice,
  softmax,
  type Tensor,
  transpose,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, test } from 'vitest';

const backend = await createCpuBackend({ threads: 2 });
const HIDDEN = Number.NEGATIVE_INFINITY;
const [BATCH, HEADS, KV_HEADS, DIM] = [2, 4, 2, 6];

/**
 * Computes attention with whole matrices, by scores, softmax and product. q is [batch, queries,
 * heads, dim].
 */
function composed(
  [q, k, v]: readonly [Tensor, Tensor, Tensor],
  mask: Tensor,
  { p, scale }: { readonly p: number; readonly scale: number },
): Tensor {
  const [batch, queries, heads, dim] = q.shape as [number, number, number, number];
  const [, keys, kvHeads] = k.shape as [number, number, number];
  const spread = (x: Tensor): Tensor => {
    const one = reshape(x, [batch, keys, kvHeads, 1, dim]);
    const all = broadcastTo(one, [batch, keys, kvHeads, heads / kvHeads, dim]);
    return transpose(reshape(all, [batch, keys, heads, dim]), [0, 2, 1, 3]);
  };
  const scores = matmul(transpose(q, [0, 2, 1, 3]), spread(k), { transposeB: true });
  const weights = softmax(add(mul(scores, scale), mask));
  const out = matmul(p > 0 ? dropout(weights, p) : weights, spread(v));
  return reshape(transpose(out, [0, 2, 1, 3]), [batch, queries, heads, dim]);
}

interface Option {
  readonly queries: number;
  readonly keys: number;
  readonly options: AttentionOptions;
  /** Returns whether query t, at its position, sees key s. */
  readonly sees: (t: number, s: number) => boolean;
}

const OPTIONS: Readonly<Record<string, Option>> = {
  nothing: { queries: 65, keys: 70, options: {}, sees: () => true },
  causal: { queries: 130, keys: 130, options: { isCausal: true }, sees: (t, s) => s <= t },
  'a cache': {
    queries: 1,
    keys: 200,
    options: { isCausal: true, queryOffset: 150 },
    sees: (_, s) => s <= 150,
  },
  'a window': {
    queries: 90,
    keys: 90,
    options: { isCausal: true, window: 17 },
    sees: (t, s) => s <= t && t - s < 17,
  },
  'a scale and dropout': {
    queries: 66,
    keys: 66,
    options: { isCausal: true, scale: 0.9, dropout: 0.3 },
    sees: (t, s) => s <= t,
  },
};

describe.each(Object.entries(OPTIONS))('attention with %s', (_, option) => {
  test('equals plain ops, and so do its gradients', async () => {
    const { queries, keys, options, sees } = option;
    const run = async (isPlain: boolean) => {
      const device = new Device(backend, { seed: 3 });
      let seed = 1;
      const random = (...shape: number[]) => {
        const size = shape.reduce((product, extent) => product * extent, 1);
        const values = Float32Array.from({ length: size }, () => {
          seed = (seed * 48271) % 2147483647;
          return (seed / 2147483647) * 2 - 1;
        });
        return device.tensor(values, shape, { requiresGrad: true });
      };
      const q = random(BATCH, queries, HEADS, DIM);
      const kv = random(BATCH, keys, 2 * KV_HEADS * DIM);
      const slope = random(BATCH, queries, HEADS, DIM).detach();
      const half = KV_HEADS * DIM;
      const out = device.scope(() => {
        if (!isPlain) {
          const rows = (start: number) => headsOf(kv, { numHeads: KV_HEADS, headDim: DIM, start });
          return scaledDotProductAttention(q, rows(0), rows(half), options);
        }
        const shape = [BATCH, keys, KV_HEADS, DIM];
        const k = reshape(slice(kv, { axis: 2, start: 0, end: half }), shape);
        const v = reshape(slice(kv, { axis: 2, start: half }), shape);
        const offsets = Float32Array.from({ length: queries * keys }, (_, i) =>
          sees(Math.floor(i / keys), i % keys) ? 0 : HIDDEN,
        );
        const scale = options.scale ?? 1 / Math.sqrt(DIM);
        const p = options.dropout ?? 0;
        return composed([q, k, v], device.tensor(offsets, [queries, keys]), { p, scale });
      });
      await out.backward({ gradient: slope });
      const arrays = await Promise.all([out, q.grad!, kv.grad!].map((one) => one.toArray()));
      device.dispose();
      return arrays;
    };
    const [got, want] = [await run(false), await run(true)];
    got.forEach((values, i) => {
      let worst = 0;
      values.forEach((value, j) => {
        worst = Math.max(worst, Math.abs(value - want[i]![j]!));
      });
      expect(values.some((value) => value !== 0)).toBe(true);
      expect(worst, ['result', 'queries', 'keys and values'][i]!).toBeLessThan(3e-6);
    });
  });
});

describe('the memory of attention', () => {
  const SEQ = 8192;
  const width = 3 * 2 * 8;

  /** Returns the peak of forward and backward by a dry run. */
  async function peakBytes(seq: number): Promise<number> {
    const device = new Device(backend);
    const { peakInUseBytes } = await device.dryRun(async () => {
      await step(device, seq);
    });
    device.dispose();
    return peakInUseBytes;
  }

  async function step(device: Device, seq: number): Promise<void> {
    const qkv = device.zeros([1, seq, width], { requiresGrad: true });
    const part = (i: number) => headsOf(qkv, { numHeads: 2, headDim: 8, start: 16 * i });
    const out = scaledDotProductAttention(part(0), part(1), part(2), { isCausal: true });
    await out.backward({ gradient: out.detach() });
    qkv.grad!.dispose();
  }

  test('is linear in the number of rows at 8,192, by a dry run', async () => {
    const [half, whole] = [await peakBytes(SEQ / 2), await peakBytes(SEQ)];
    expect(whole).toBe(2 * half);
    // These are the rows of the operand and of its gradient, the rows of the output, and two sums
    // for each head. The matrix of weights would have 64 MiB for each head.
    expect(whole).toBe(4 * SEQ * (2 * width + 16 + 2 * 2));
  });

  test('is what the ledger counts', async () => {
    const device = new Device(backend);
    await device.scope(() => step(device, 512));
    expect(device.memory().peak.total).toBe(4 * 512 * (2 * width + 16 + 2 * 2));
    device.dispose();
  });
});
