// Causal self-attention from packed queries, keys and values, without copying heads apart: the
// products read and write them in place through strides.

import type { View } from '../backend.js';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import type { Tensor } from '../tensor.js';
import { requireBindable, requireFloat, shapeText } from './checks.js';
import { type DropoutMask, nextMask } from './dropout.js';

/** Where the heads of one operand lie. */
interface Heads {
  readonly view: View;
  readonly row: number;
  readonly batch: readonly [number, number];
}

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA?: boolean;
  readonly transposeB?: boolean;
  readonly alpha?: number;
}

/**
 * softmax(q k^T / sqrt(headDim), causal) v for each head (Vaswani et al., 2017).
 * @param qkv [batch, seq, 3 * dim]: queries, keys, values, each numHeads heads side by side
 * @param options.dropout probability of dropping an attention weight. Default 0.
 * @returns [batch, seq, dim]
 * Saves the attention weights, [batch, numHeads, seq, seq].
 */
export function causalSelfAttention(
  qkv: Tensor,
  options: { readonly numHeads: number; readonly dropout?: number },
): Tensor {
  requireFloat('causalSelfAttention', qkv);
  checkNames('causalSelfAttention', options, ['numHeads', 'dropout']);
  const { numHeads } = options;
  const [batch, seq, width] = qkv.shape as [number, number, number];
  const dim = width / 3;
  const headDim = dim / numHeads;
  if (qkv.rank !== 3 || !Number.isInteger(numHeads) || headDim % 2 !== 0) {
    throw new ShapeError(
      `causalSelfAttention: expected qkv [batch, seq, 3 * ${numHeads} * headDim] with an even headDim, got ${shapeText(qkv.shape)}. Queries, keys and values lie side by side.`,
    );
  }
  return qkv.device.scope(() => attend(qkv, { batch, seq, dim, headDim, ...options }));
}

/** The op, in a scope that frees the weights where no graph needs them. */
function attend(
  qkv: Tensor,
  options: {
    readonly batch: number;
    readonly seq: number;
    readonly dim: number;
    readonly headDim: number;
    readonly numHeads: number;
    readonly dropout?: number;
  },
): Tensor {
  const { batch, seq, dim, headDim, numHeads } = options;
  const { device, dtype } = qkv;
  const scale = 1 / Math.sqrt(headDim);
  const weights = device.empty([batch, numHeads, seq, seq], { dtype });
  requireBindable('causalSelfAttention', qkv, weights);
  const out = device.empty([batch, seq, dim], { dtype });
  const mask = nextMask('causalSelfAttention', weights, options.dropout ?? 0);

  const packed = (tensor: Tensor, part: number): Heads => ({
    view: offsetView(tensor.view(), part * dim),
    row: 3 * dim,
    batch: [seq * 3 * dim, headDim],
  });
  const merged = (tensor: Tensor): Heads => ({
    view: tensor.view(),
    row: dim,
    batch: [seq * dim, headDim],
  });
  const square = (tensor: Tensor): Heads => ({
    view: tensor.view(),
    row: seq,
    batch: [numHeads * seq * seq, seq * seq],
  });
  const run = (a: Heads, b: Heads, to: Heads, spec: Product) =>
    device.run('matmul', {
      a: a.view,
      b: b.view,
      out: to.view,
      bias: undefined,
      m: spec.m,
      n: spec.n,
      k: spec.k,
      transposeA: spec.transposeA ?? false,
      transposeB: spec.transposeB ?? false,
      aRow: a.row,
      bRow: b.row,
      outRow: to.row,
      batch: [batch, numHeads],
      aBatch: a.batch,
      bBatch: b.batch,
      outBatch: to.batch,
      alpha: spec.alpha ?? 1,
      accumulate: false,
    });

  if (out.size > 0) {
    run(packed(qkv, 0), packed(qkv, 1), square(weights), {
      m: seq,
      n: seq,
      k: headDim,
      transposeB: true,
      alpha: scale, // before the store: unscaled scores may overflow f16
    });
    device.run('softmax', {
      x: weights.view(),
      out: weights.view(),
      rows: batch * numHeads * seq,
      cols: seq,
      scale: 1,
      isLog: false,
      causalRows: seq,
    });
    device.scope(() => {
      const used = masked(weights, mask);
      run(square(used), packed(qkv, 2), merged(out), { m: seq, n: headDim, k: seq });
    });
  }

  device.record({
    name: 'causalSelfAttention',
    inputs: [qkv],
    outputs: [out],
    saved: [qkv, weights],
    backward: ([dy]) => {
      const dQkv = device.empty(qkv.shape, { dtype });
      if (dQkv.size === 0) {
        return [dQkv];
      }
      const dWeights = device.empty(weights.shape, { dtype });
      run(merged(dy!), packed(qkv, 2), square(dWeights), {
        m: seq,
        n: seq,
        k: headDim,
        transposeB: true,
      });
      device.scope(() => {
        const used = masked(weights, mask);
        run(square(used), merged(dy!), packed(dQkv, 2), {
          m: seq,
          n: headDim,
          k: seq,
          transposeA: true,
        });
      });
      if (mask !== undefined) {
        runMask(dWeights, dWeights, mask);
      }
      device.run('softmaxBackward', {
        y: weights.view(),
        dy: dWeights.view(),
        out: dWeights.view(),
        rows: batch * numHeads * seq,
        cols: seq,
        scale: 1,
        isLog: false,
      });
      const toHeads = { m: seq, n: headDim, k: seq, alpha: scale };
      run(square(dWeights), packed(qkv, 1), packed(dQkv, 0), toHeads);
      run(square(dWeights), packed(qkv, 0), packed(dQkv, 1), { ...toHeads, transposeA: true });
      return [dQkv];
    },
  });
  return out;
}

/** The weights after dropout; themselves where there is none. */
function masked(weights: Tensor, mask: DropoutMask | undefined): Tensor {
  if (mask === undefined) {
    return weights;
  }
  const out = weights.device.empty(weights.shape, { dtype: weights.dtype });
  runMask(weights, out, mask);
  return out;
}

function runMask(x: Tensor, out: Tensor, mask: DropoutMask): void {
  x.device.run('dropout', {
    x: x.view(),
    out: out.view(),
    p: mask.p,
    key0: mask.key.key0,
    key1: mask.key.key1,
    counterOffset: mask.counterOffset,
  });
}

function offsetView(view: View, elements: number): View {
  const bytes = view.dtype === 'f32' ? 4 : 2;
  return {
    ...view,
    byteOffset: view.byteOffset + elements * bytes,
    size: view.size - elements,
  };
}
