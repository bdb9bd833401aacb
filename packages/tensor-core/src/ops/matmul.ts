// Matrix products: `matmul`, batched with broadcasting, and `linear`, whose bias, activation or
// residual is part of the product's kernel. Operands can be read transposed without a copy.

import { byteSize } from '@shardweave/dtypes';
import { checkNames, checkValue } from '../check-options.js';
import type { Device } from '../device.js';
import { ShapeError } from '../errors.js';
import { BLOCK_DOTS_ROWS, QUANTIZED_ROW } from '../kernel-calls/blocks.js';
import type { KernelCalls } from '../kernel-calls/kernel-calls.js';
import {
  ACTIVATION_KINDS,
  type Activation,
  type Epilogue,
  type EpilogueKernels,
  runEpilogue,
} from '../kernel-calls/matmul.js';
import { type OptionRule, oneOf } from '../options.js';
import { elementCountOf, requireNumbers, type Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { eachPanel } from './blocks.js';
import {
  broadcastShapes,
  isSameShape,
  requireFloat,
  requireSameDevice,
  requireSummands,
  shapeText,
} from './checks.js';
import { recordActivation } from './elementwise.js';
import { gradientPlace } from './gradient-place.js';
import { sumRowsInto } from './reduce.js';
import { broadcastTo, reshape } from './shape.js';

/** Options of matmul: which operands are read transposed, without a copy. */
export interface MatmulOptions {
  /** Reads a's last two axes swapped: a is stored [..., k, m]. */
  readonly transposeA?: boolean;
  /** Reads b's last two axes swapped: b is stored [..., n, k]. */
  readonly transposeB?: boolean;
}

/**
 * The matrix product of a [..., m, k] and b [..., k, n], which is [..., m, n]. Leading axes
 * broadcast. Sums are made in f32; the result is f32 where the dtypes of a and b differ.
 * @throws {ShapeError} when an operand has fewer than two axes, the inner dimensions differ, the
 * leading axes do not broadcast, or the operands are of two devices
 * @throws {DTypeError} when an operand is no float tensor
 * @example
 * ```ts
 * import { Device, matmul } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const a = device.tensor([1, 2, 3, 4], [2, 2]);
 * const b = device.tensor([1, 10], [2, 1]);
 * console.log(await matmul(a, b).toArray()); // logs Float32Array(2) [ 21, 43 ]
 * device.dispose();
 * await backend.dispose();
 * ```
 */
export function matmul(a: Tensor, b: Tensor, options: MatmulOptions = {}): Tensor {
  checkNames('matmul', options, ['transposeA', 'transposeB']);
  const { transposeA = false, transposeB = false } = options;
  requireFloat('matmul', a, b);
  requireSameDevice('matmul', a, b);
  requireNumbers(b);
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
    // A batch of matrices times one shared matrix is a single product of all their rows.
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

const KIND = oneOf(...ACTIVATION_KINDS);
const ABSENT: OptionRule = {
  expected: 'left out beside an activation',
  holds: (value) => value === undefined,
};

/** What linear can apply to its result in the same kernel: an activation or a residual. */
export interface LinearEnding {
  /** A function that is applied to each element of x times weight plus bias. */
  readonly activation?: Activation | undefined;
  /** A tensor that is added to the result, of the result's shape and the dtype of x. */
  readonly residual?: Tensor | undefined;
}

/** Options of linear: the weight, a bias, and what the product ends with. */
export interface LinearOptions extends LinearEnding {
  /**
   * [in, out], or with transposeWeight [out, in] as PyTorch's Linear has it. One in blocks is
   * decoded a panel at a time, or number by number for few rows of x.
   */
  readonly weight: Tensor;
  /** A vector [out] that is added to each row. */
  readonly bias?: Tensor | undefined;
  readonly transposeWeight?: boolean;
}

/**
 * The affine map of a linear layer: x [..., in] times weight plus bias, which is [..., out], in the
 * dtype of x. Where x is the result of an activation and no other product uses it, the kernel that
 * computes the gradient of x also multiplies it by the activation's derivative.
 * @throws {ShapeError} when the shapes of x, weight, bias or residual do not fit together
 * @throws {DTypeError} when an operand is no float tensor
 * @throws {OptionError} for an unknown option, or an activation beside a residual
 */
export function linear(x: Tensor, options: LinearOptions): Tensor {
  checkNames('linear', options, ['weight', 'bias', 'transposeWeight', 'activation', 'residual']);
  const { weight, bias, transposeWeight = false, activation, residual } = options;
  const operands = [x, weight, bias, residual].filter((tensor) => tensor !== undefined);
  if (activation !== undefined) {
    checkValue('linear', 'activation', activation, KIND);
    checkValue('linear', 'residual', residual, ABSENT);
  }
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
  const like = () => device.empty([...x.shape.slice(0, -1), n], { dtype: x.dtype });
  const out = like();
  const activated = activation === undefined ? undefined : like();
  if (residual !== undefined) {
    requireSummands('linear', out, residual);
  }
  const spec = { m, n, k, transposeA: false, transposeB: transposeWeight };
  runMatmul(x, weight, out, spec, {
    bias,
    ending: () => endingOf(options, activated),
  });
  if (!device.isGradEnabled) {
    return activated ?? out;
  }
  const note = x.origin?.node.activation;
  if (note !== undefined) {
    note.numProducts += 1;
  }
  const slots = [x, weight, bias, residual, note?.through];
  device.record({
    name: 'linear',
    inputs: slots.filter((tensor) => tensor !== undefined),
    outputs: [out],
    saved: [
      ...(weight.requiresGrad ? [x] : []),
      ...(x.requiresGrad ? [weight] : []),
      ...(note === undefined ? [] : [note.through]),
    ],
    backward: ([dy], needs) => {
      // Where several products use x, the sum of their gradients is multiplied by the activation's
      // slope once, by the activation's own rule.
      const isSloped = note?.numProducts === 1;
      let dx: Tensor | undefined;
      if (needs[0]) {
        dx = device.empty(x.shape, { dtype: x.dtype });
        const back = { m, n: k, k: n, transposeA: false, transposeB: !transposeWeight };
        runMatmul(dy!, weight, dx, back, {
          ending: () =>
            isSloped
              ? { kind: 'slope', activation: note.kind, at: note.through.view() }
              : undefined,
        });
      }
      const dWeight = needs[1] ? gradientPlace(weight) : undefined;
      const dBias = bias !== undefined && needs[2] ? gradientPlace(bias) : undefined;
      // The product that makes the weight's gradient reads all of dy, so it also sums the rows of
      // dy for the bias. A kernel of its own sums them only where there is no such product.
      const isProduct = dWeight !== undefined && dWeight.size > 0 && m > 0;
      if (dBias !== undefined && !isProduct) {
        sumRowsInto(reshape(dy!, [m, n]), dBias);
      }
      if (dWeight !== undefined) {
        const sums = isProduct ? dBias : undefined;
        if (transposeWeight) {
          const own = { m: n, n: k, k: m, transposeA: true, transposeB: false };
          runMatmul(dy!, x, dWeight, own, { aSums: sums });
        } else {
          const own = { m: k, n, k: m, transposeA: true, transposeB: false };
          runMatmul(x, dy!, dWeight, own, { bSums: sums });
        }
      }
      const gradients = [isSloped ? undefined : dx, dWeight, dBias, dy, isSloped ? dx : undefined];
      return gradients.filter((_, i) => slots[i] !== undefined);
    },
  });
  if (activation === undefined || activated === undefined) {
    return out;
  }
  recordActivation(activation, out, activated);
  return activated;
}

function endingOf(
  { activation, residual }: LinearEnding,
  activated: Tensor | undefined,
): Epilogue | undefined {
  if (residual !== undefined) {
    return { kind: 'add', addend: residual.view() };
  }
  return activation === undefined
    ? undefined
    : { kind: 'activate', activation, activated: activated!.view() };
}

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA: boolean;
  readonly transposeB: boolean;
}

/** The recorded product of two matrices, or of two tensors [batch, ., .] of equal batch. */
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
        // The gradient of a is dy b^T; where a is stored transposed, so is its gradient: b dy^T.
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

/**
 * Encodes one product; a, b and out are dense, each with one batch axis in front or none. b may be
 * a matrix in blocks.
 */
function runMatmul(
  a: Tensor,
  b: Tensor,
  out: Tensor,
  spec: Product,
  options: {
    readonly bias?: Tensor | undefined;
    readonly aSums?: Tensor | undefined;
    readonly bSums?: Tensor | undefined;
    readonly ending?: () => Epilogue | undefined;
  } = {},
): void {
  if (out.size === 0) {
    return;
  }
  const { device } = out;
  const { m, n, k, transposeA, transposeB } = spec;
  const batch = out.size / (m * n);
  const call: KernelCalls['matmul'] = {
    a: a.view(),
    b: (b.blocks?.words ?? b).view(),
    out: out.view(),
    bias: options.bias?.view(),
    aSums: options.aSums?.view(),
    bSums: options.bSums?.view(),
    epilogue: options.ending?.(),
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
  };
  if (k > 0 && b.blocks === undefined) {
    device.run('matmul', call);
    return;
  }
  if (k > 0) {
    runBlocks(b, call);
    runEpilogue(call, kernelsOf(device));
    return;
  }
  device.run('fill', { out: call.out, value: 0 });
  if (call.bias !== undefined) {
    const walk = { shape: [m, n], aStrides: [n, 1], bStrides: [0, 1] };
    device.run('binary', { kind: 'add', a: call.out, b: call.bias, out: call.out, ...walk });
  }
  runEpilogue(call, kernelsOf(device));
}

function kernelsOf(device: Device): EpilogueKernels {
  return {
    binary: (own) => device.run('binary', own),
    unary: (own) => device.run('unary', own),
    unaryBackward: (own) => device.run('unaryBackward', own),
    crossEntropyBackward: (own) => device.run('crossEntropyBackward', own),
  };
}

/**
 * A product with a matrix in blocks. Few rows are multiplied while it is decoded. For more it is
 * decoded in panels: as many columns of out at a time have all their terms in one product, so their
 * bits are those of a decoded matrix.
 */
function runBlocks(b: Tensor, call: KernelCalls['matmul']): void {
  const { m, n, k, a, transposeB, out, bias } = call;
  if (transposeB && m <= BLOCK_DOTS_ROWS && a.dtype === b.dtype) {
    const { words, type } = b.blocks!;
    const { device } = b;
    const quantizesRows =
      device.backend.quantizesRows === true &&
      !device.isGradEnabled &&
      a.dtype === 'f32' &&
      k <= QUANTIZED_ROW;
    device.run('blockDots', { words: words.view(), a, out, bias, type, m, n, k, quantizesRows });
    return;
  }
  // Rows of an odd number of 16-bit elements do not begin at whole words.
  const isWhole = m > 1 && n % 2 === 1 && byteSize(out.dtype) === 2;
  eachPanel(b, { by: transposeB ? 'rows' : 'columns', isWhole }, ({ numbers, first, count }) => {
    b.device.run('matmul', {
      ...call,
      b: numbers,
      out: part(out, first, (m - 1) * n + count),
      bias: bias && part(bias, first, count),
      epilogue: undefined,
      n: count,
      bRow: transposeB ? k : count,
      outRow: m === 1 ? count : n,
    });
  });
}

/** `size` elements of a view from `first` on. */
function part(view: View, first: number, size: number): View {
  return { ...view, byteOffset: view.byteOffset + first * byteSize(view.dtype), size };
}

function lastTwo(x: Tensor, isTransposed: boolean): [number, number] {
  const [rows, cols] = [x.shape.at(-2) ?? 1, x.shape.at(-1) ?? 1];
  return isTransposed ? [cols, rows] : [rows, cols];
}
