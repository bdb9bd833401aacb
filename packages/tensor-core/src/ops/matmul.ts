// Matrix products: batched with broadcasting, operands read transposed without a copy, and the
// affine map of a linear layer with its bias in the same kernel.

import { gradientPlace } from '../autograd/gradient-place.js';
import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { elementCountOf, type Tensor } from '../tensor.js';
import {
  broadcastShapes,
  isSameShape,
  requireFloat,
  requireSameDevice,
  shapeText,
} from './checks.js';
import { sumRowsInto } from './reduce.js';
import { broadcastTo, reshape } from './shape.js';

export interface MatmulOptions {
  /** Reads a's last two axes swapped: a is stored [..., k, m]. */
  readonly transposeA?: boolean;
  /** Reads b's last two axes swapped: b is stored [..., n, k]. */
  readonly transposeB?: boolean;
}

/**
 * a [..., m, k] times b [..., k, n] -> [..., m, n]; leading axes broadcast. f32 accumulation.
 * @throws {ShapeError} when the inner dimensions differ
 */
export function matmul(a: Tensor, b: Tensor, options: MatmulOptions = {}): Tensor {
  checkNames('matmul', options, ['transposeA', 'transposeB']);
  const { transposeA = false, transposeB = false } = options;
  requireFloat('matmul', a, b);
  requireSameDevice('matmul', a, b);
  if (a.rank < 2 || b.rank < 2) {
    throw new ShapeError(
      `matmul: expected at least two axes each, got ${shapeText(a.shape)} x ${shapeText(b.shape)}. Reshape vectors to [1, n] or [n, 1].`,
    );
  }
  const [m, ka] = lastTwo(a, transposeA);
  const [kb, n] = lastTwo(b, transposeB);
  if (ka !== kb) {
    throw new ShapeError(
      `matmul: inner dims differ, ${shapeText(a.shape)}${transposeA ? '^T' : ''} x ${shapeText(b.shape)}${transposeB ? '^T' : ''}. transposeA and transposeB read an operand's last two axes swapped.`,
    );
  }
  const lead = broadcastShapes('matmul', a.shape.slice(0, -2), b.shape.slice(0, -2));
  const count = elementCountOf(lead);
  return a.device.scope(() => {
    // Many rows times one matrix is one product.
    if (b.rank === 2 && a.rank > 2 && !transposeA) {
      const rows = count * m;
      const folded = product(reshape(a, [rows, ka]), b, {
        transposeA,
        transposeB,
        m: rows,
        n,
        k: ka,
      });
      return reshape(folded, [...lead, m, n]);
    }
    const batched = (x: Tensor): Tensor => {
      if (lead.length === 0) {
        return x;
      }
      const matrix = x.shape.slice(-2);
      return reshape(broadcastTo(x, [...lead, ...matrix]), [count, ...matrix]);
    };
    const out = product(batched(a), batched(b), { transposeA, transposeB, m, n, k: ka });
    return reshape(out, [...lead, m, n]);
  });
}

/**
 * x [..., in] times weight plus bias -> [..., out].
 * @param options.weight [in, out], or with transposeWeight [out, in] as PyTorch's Linear has it
 * @param options.bias [out]
 */
export function linear(
  x: Tensor,
  options: {
    readonly weight: Tensor;
    readonly bias?: Tensor | undefined;
    readonly transposeWeight?: boolean;
  },
): Tensor {
  checkNames('linear', options, ['weight', 'bias', 'transposeWeight']);
  const { weight, bias, transposeWeight = false } = options;
  const operands = bias === undefined ? [x, weight] : [x, weight, bias];
  requireFloat('linear', ...operands);
  requireSameDevice('linear', ...operands);
  const [k, n] = lastTwo(weight, transposeWeight);
  if (
    weight.rank !== 2 ||
    x.shape.at(-1) !== k ||
    (bias !== undefined && !isSameShape(bias.shape, [n]))
  ) {
    throw new ShapeError(
      `linear: expected x [..., ${k}], weight of two axes and bias [${n}], got x ${shapeText(x.shape)}, weight ${shapeText(weight.shape)}${transposeWeight ? '^T' : ''}, bias ${bias === undefined ? 'none' : shapeText(bias.shape)}.`,
    );
  }
  const m = elementCountOf(x.shape.slice(0, -1));
  const { device } = x;
  const out = device.empty([...x.shape.slice(0, -1), n], { dtype: x.dtype });
  runMatmul(x, weight, out, { m, n, k, transposeA: false, transposeB: transposeWeight }, { bias });
  device.record({
    name: 'linear',
    inputs: operands,
    outputs: [out],
    saved: [...(weight.requiresGrad ? [x] : []), ...(x.requiresGrad ? [weight] : [])],
    backward: ([dy], needs) => {
      let dx: Tensor | undefined;
      if (needs[0]) {
        dx = device.empty(x.shape, { dtype: x.dtype });
        runMatmul(dy!, weight, dx, {
          m,
          n: k,
          k: n,
          transposeA: false,
          transposeB: !transposeWeight,
        });
      }
      const dWeight = needs[1] ? gradientPlace(weight) : undefined;
      const dBias = needs[2] ? gradientPlace(bias!) : undefined;
      // The product with dy sums it, too, where there is one.
      const isProduct = dWeight !== undefined && dWeight.size > 0 && m > 0;
      if (dBias !== undefined && !isProduct) {
        sumRowsInto(reshape(dy!, [m, n]), dBias);
      }
      if (dWeight !== undefined) {
        const sums = isProduct ? dBias : undefined;
        const spec = { k: m, transposeA: true, transposeB: false };
        if (transposeWeight) {
          runMatmul(dy!, x, dWeight, { ...spec, m: n, n: k }, { aSums: sums });
        } else {
          runMatmul(x, dy!, dWeight, { ...spec, m: k, n }, { bSums: sums });
        }
      }
      return bias === undefined ? [dx, dWeight] : [dx, dWeight, dBias];
    },
  });
  return out;
}

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
}

/** Rank 2 x rank 2, or rank 3 x rank 3 of equal batch. */
function product(a: Tensor, b: Tensor, spec: Product): Tensor {
  const { device } = a;
  const { transposeA, transposeB, m, n } = spec;
  const batch = a.rank === 3 ? [a.shape[0]!] : [];
  const dtype = a.dtype === b.dtype ? a.dtype : 'f32';
  const out = device.empty([...batch, m, n], { dtype });
  runMatmul(a, b, out, spec);
  device.record({
    name: 'matmul',
    inputs: [a, b],
    outputs: [out],
    saved: [...(b.requiresGrad ? [a] : []), ...(a.requiresGrad ? [b] : [])],
    backward: ([dy], needs) => {
      const k = spec.k;
      let da: Tensor | undefined;
      if (needs[0]) {
        da = device.empty(a.shape, { dtype: a.dtype });
        // a = dy b^T, or stored transposed b dy^T.
        if (!transposeA) {
          runMatmul(dy!, b, da, { m, n: k, k: n, transposeA: false, transposeB: !transposeB });
        } else {
          runMatmul(b, dy!, da, { m: k, n: m, k: n, transposeA: transposeB, transposeB: true });
        }
      }
      let db: Tensor | undefined;
      if (needs[1]) {
        db = device.empty(b.shape, { dtype: b.dtype });
        if (!transposeB) {
          runMatmul(a, dy!, db, { m: k, n, k: m, transposeA: !transposeA, transposeB: false });
        } else {
          runMatmul(dy!, a, db, { m: n, n: k, k: m, transposeA: true, transposeB: transposeA });
        }
      }
      return [da, db];
    },
  });
  return out;
}

/** Encodes one product; a, b and out are dense, with a batch axis in front or none. */
function runMatmul(
  a: Tensor,
  b: Tensor,
  out: Tensor,
  spec: Product,
  options: {
    readonly bias?: Tensor | undefined;
    readonly aSums?: Tensor | undefined;
    readonly bSums?: Tensor | undefined;
  } = {},
): void {
  if (out.size === 0) {
    return;
  }
  const { m, n, k, transposeA, transposeB } = spec;
  const batch = out.size / (m * n);
  if (k === 0) {
    out.device.run('fill', { out: out.view(), value: 0 });
    if (options.bias !== undefined) {
      addRow(out, options.bias, m, n);
    }
    return;
  }
  out.device.run('matmul', {
    a: a.view(),
    b: b.view(),
    out: out.view(),
    bias: options.bias?.view(),
    aSums: options.aSums?.view(),
    bSums: options.bSums?.view(),
    m,
    n,
    k,
    transposeA,
    transposeB,
    aRow: transposeA ? m : k,
    bRow: transposeB ? k : n,
    outRow: n,
    batch: [1, batch],
    aBatch: [0, m * k],
    bBatch: [0, k * n],
    outBatch: [0, m * n],
    alpha: 1,
    accumulate: false,
  });
}

/** out [m, n] += row [n]. */
function addRow(out: Tensor, row: Tensor, m: number, n: number): void {
  const [a, b] = [out.view(), row.view()];
  const walk = { shape: [m, n], aStrides: [n, 1], bStrides: [0, 1] };
  out.device.run('binary', { kind: 'add', a, b, out: a, ...walk });
}

function lastTwo(x: Tensor, isTransposed: boolean): [number, number] {
  const [rows, cols] = [x.shape.at(-2) ?? 1, x.shape.at(-1) ?? 1];
  return isTransposed ? [cols, rows] : [rows, cols];
}
