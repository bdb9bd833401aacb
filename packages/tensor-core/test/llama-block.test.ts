// A block of a Llama made of fused ops (grouped heads, RMS norms, rotary positions, SwiGLU) equals
// one composed of plain ops in values and gradients, with a fraction of the kernel calls.

import {
  add,
  addRmsNorm,
  affine,
  broadcastTo,
  cat,
  Device,
  linear,
  matmul,
  mean,
  mul,
  randomUniform,
  reshape,
  rmsNorm,
  rotaryEmbedding,
  rotaryFrequencies,
  rsqrt,
  scaledDotProductAttention,
  sigmoid,
  slice,
  softmax,
  square,
  sub,
  swiGlu,
  type Tensor,
  transpose,
} from '@shardweave/tensor-core';
import { describe, expect, test } from 'vitest';
import { testedBackends } from './support/backends.js';

const [BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, HIDDEN] = [2, 9, 4, 2, 6, 20];
const DIM = HEADS * HEAD_DIM;
const EPS = 1e-5;
/**
 * The most kernel calls, forward and backward. The composed block needs more than three times as
 * many.
 */
const MOST_CALLS = 40;

interface Weights {
  readonly norm1: Tensor;
  readonly q: Tensor;
  readonly k: Tensor;
  readonly v: Tensor;
  readonly o: Tensor;
  readonly norm2: Tensor;
  readonly gate: Tensor;
  readonly up: Tensor;
  readonly down: Tensor;
}

function fused(x: Tensor, w: Weights): Tensor {
  const frequencies = rotaryFrequencies(x.device, { headDim: HEAD_DIM });
  const normed = rmsNorm(x, { weight: w.norm1, eps: EPS });
  const project = (weight: Tensor, from: Tensor) => linear(from, { weight, transposeWeight: true });
  const turned = (weight: Tensor, heads: number) => {
    const rows = reshape(project(weight, normed), [BATCH, SEQ, heads, HEAD_DIM]);
    return rotaryEmbedding(rows, { frequencies });
  };
  const [q, k] = [turned(w.q, HEADS), turned(w.k, KV_HEADS)];
  const v = reshape(project(w.v, normed), [BATCH, SEQ, KV_HEADS, HEAD_DIM]);
  const attended = scaledDotProductAttention(q, k, v, { isCausal: true });
  const mixed = project(w.o, reshape(attended, [BATCH, SEQ, DIM]));
  const { sum, norm } = addRmsNorm(mixed, { residual: x, weight: w.norm2, eps: EPS });
  const gated = swiGlu(project(w.gate, norm), { up: project(w.up, norm) });
  return add(sum, project(w.down, gated));
}

function composed(x: Tensor, w: Weights): Tensor {
  const { device } = x;
  const normalize = (rows: Tensor, weight: Tensor) => {
    const scale = rsqrt(affine(mean(square(rows), { axis: -1, keepDims: true }), 1, EPS));
    return mul(mul(rows, scale), weight);
  };
  const project = (weight: Tensor, from: Tensor) => linear(from, { weight, transposeWeight: true });
  const half = HEAD_DIM / 2;
  const table = (of: (angle: number) => number) =>
    device.tensor(
      Array.from({ length: SEQ * half }, (_, i) =>
        of(Math.floor(i / half) * 10_000 ** ((-2 * (i % half)) / HEAD_DIM)),
      ),
      [SEQ, half],
    );
  const [cos, sin] = [table(Math.cos), table(Math.sin)];
  /** The result is [batch, heads, seq, headDim]. */
  const split = (rows: Tensor, heads: number) =>
    transpose(reshape(rows, [BATCH, SEQ, heads, HEAD_DIM]), [0, 2, 1, 3]);
  const turn = (rows: Tensor) => {
    const a = slice(rows, { axis: 3, start: 0, end: half });
    const b = slice(rows, { axis: 3, start: half, end: HEAD_DIM });
    return cat([sub(mul(a, cos), mul(b, sin)), add(mul(b, cos), mul(a, sin))], { axis: 3 });
  };
  const repeat = (rows: Tensor) => {
    const groups = HEADS / KV_HEADS;
    const one = reshape(rows, [BATCH, KV_HEADS, 1, SEQ, HEAD_DIM]);
    const all = broadcastTo(one, [BATCH, KV_HEADS, groups, SEQ, HEAD_DIM]);
    return reshape(all, [BATCH, HEADS, SEQ, HEAD_DIM]);
  };
  const normed = normalize(x, w.norm1);
  const q = turn(split(project(w.q, normed), HEADS));
  const k = repeat(turn(split(project(w.k, normed), KV_HEADS)));
  const v = repeat(split(project(w.v, normed), KV_HEADS));
  const scores = mul(matmul(q, k, { transposeB: true }), 1 / Math.sqrt(HEAD_DIM));
  const hidden = device.tensor(
    Array.from({ length: SEQ * SEQ }, (_, i) => (i % SEQ > Math.floor(i / SEQ) ? -1e30 : 0)),
    [SEQ, SEQ],
  );
  const attended = transpose(matmul(softmax(add(scores, hidden)), v), [0, 2, 1, 3]);
  const sum = add(x, project(w.o, reshape(attended, [BATCH, SEQ, DIM])));
  const norm = normalize(sum, w.norm2);
  const gate = project(w.gate, norm);
  const gated = mul(mul(gate, sigmoid(gate)), project(w.up, norm));
  return add(sum, project(w.down, gated));
}

/** Returns the block's output and gradients, and the number of kernel calls that they took. */
async function runBlock(
  device: Device,
  block: (x: Tensor, weights: Weights) => Tensor,
): Promise<{ readonly results: Float32Array[]; readonly calls: number }> {
  let numLeaves = 0;
  const leaf = (...shape: number[]) => {
    const key = { key0: 1, key1: numLeaves++ };
    return randomUniform(device, shape, { low: -0.5, high: 0.5, key, requiresGrad: true });
  };
  return device.scope(async () => {
    const x = leaf(BATCH, SEQ, DIM);
    const kvDim = KV_HEADS * HEAD_DIM;
    const weights: Weights = {
      norm1: leaf(DIM),
      q: leaf(DIM, DIM),
      k: leaf(kvDim, DIM),
      v: leaf(kvDim, DIM),
      o: leaf(DIM, DIM),
      norm2: leaf(DIM),
      gate: leaf(HIDDEN, DIM),
      up: leaf(HIDDEN, DIM),
      down: leaf(DIM, HIDDEN),
    };
    const gradient = leaf(BATCH, SEQ, DIM).detach();
    const before = device.backend.dispatches;
    const out = block(x, weights);
    await out.backward({ gradient });
    const calls = device.backend.dispatches - before;
    const leaves = [x, ...Object.values(weights)] as Tensor[];
    const results = await Promise.all(
      [out, ...leaves.map(({ grad }) => grad!)].map((tensor) => tensor.toArray()),
    );
    for (const tensor of leaves) {
      tensor.grad!.dispose();
    }
    return { results: results as Float32Array[], calls };
  });
}

describe.each(await testedBackends())('on $name', ({ reason, open }) => {
  test.skipIf(reason !== undefined)('a block is equal to its parts, in few calls', async () => {
    const backend = await open();
    const device = new Device(backend);
    const [got, want] = [await runBlock(device, fused), await runBlock(device, composed)];
    want.results.forEach((values, i) => {
      const top = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      values.forEach((value, j) => {
        expect(Math.abs(got.results[i]![j]! - value)).toBeLessThan(2e-5 * top);
      });
    });
    expect(got.calls).toBeLessThanOrEqual(MOST_CALLS);
    expect(want.calls).toBeGreaterThan(3 * got.calls);
    device.dispose();
    await backend.dispose();
  });
});
