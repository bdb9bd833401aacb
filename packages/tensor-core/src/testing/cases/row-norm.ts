// Cases of rowNorm and its gradients, as layerNorm and rmsNorm call it, also of a sum with a
// residual.

import type { DType } from '@shardweave/dtypes';
import type { View } from '../../view.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/**
 * The shapes [rows, cols]: more rows than a part of the parameters' gradients has, and rows of
 * several blocks.
 */
const SHAPES = [
  [1, 1],
  [3, 7],
  [7, 63],
  [65, 65],
  [2, 1000],
  [300, 5],
  [35, 1030],
  [2, 2051],
] as const;

export function rowNormCases(): ConformanceCase[] {
  return [
    ...[true, false].flatMap((isCentered) => [
      ...FLOATS.map((dtype) => normCase(isCentered, dtype, dtype)),
      normCase(isCentered, 'f32', 'f16'),
      normCase(isCentered, 'bf16', 'f32'),
      plainCase(isCentered),
    ]),
    flatParametersCase(),
    offCenterCase(),
    ...FLOATS.map(residualCase),
  ];
}

interface NormOperands {
  readonly x: View;
  readonly residual?: View | undefined;
  readonly sum?: View | undefined;
  readonly weight?: View | undefined;
  /** What layerNorm adds; rmsNorm has none. */
  readonly bias?: View | undefined;
  /** What rmsNorm adds to the weight; layerNorm adds nothing. The default is 0. */
  readonly weightOffset?: number;
  readonly out: View;
  readonly rows: number;
  readonly cols: number;
  readonly eps: number;
}

/** Runs a norm, which writes statistics of each row as well. */
export function runNorm(calls: CallRecorder, isCentered: boolean, operands: NormOperands): void {
  const { bias, weightOffset = 0, weight, ...rest } = operands;
  const perRow = () => calls.output(rest.rows, 'f32', { offset: 1 });
  const call = { ...rest, weight, rstd: perRow() };
  calls.run(
    'rowNorm',
    isCentered
      ? { ...call, isCentered, mean: perRow(), bias }
      : { ...call, isCentered, weightOffset },
  );
}

interface NormGradients {
  readonly x: View;
  readonly weight?: View | undefined;
  readonly weightOffset?: number;
  readonly dy: View;
  readonly dSum?: View | undefined;
  readonly dx?: View | undefined;
  readonly dWeight?: View | undefined;
  /** What layerNorm alone writes. */
  readonly dBias?: View | undefined;
  readonly rows: number;
  readonly cols: number;
}

/** Runs the backward kernel of a norm, with statistics of each row that no forward pass wrote. */
export function runNormBackward(
  calls: CallRecorder,
  isCentered: boolean,
  operands: NormGradients,
): void {
  const { dBias, weightOffset = 0, weight, ...rest } = operands;
  const rstd = calls.floats(rest.rows, 'f32', { low: 0.5, high: 1, offset: 3 });
  const call = { ...rest, weight, rstd };
  calls.run(
    'rowNormBackward',
    isCentered
      ? { ...call, isCentered, mean: calls.floats(rest.rows, 'f32', { offset: 1 }), dBias }
      : { ...call, isCentered, weightOffset },
  );
}

/** @param parameters the dtype of weight, bias and output, while the input has `dtype` */
function normCase(isCentered: boolean, dtype: DType, parameters: DType): ConformanceCase {
  const name = isCentered
    ? `layerNorm ${dtype} with parameters ${parameters}, and backward`
    : `rmsNorm ${dtype} with weight ${parameters}, and backward`;
  return recordedCase(name, 'sum', (calls) => {
    for (const [i, [rows, cols]] of SHAPES.entries()) {
      const x = calls.floats(rows * cols, dtype, { low: -2, high: 3, offset: 1 });
      const weight = calls.floats(cols, parameters, { offset: 3 });
      const call = { rows, cols, x, weight, weightOffset: i % 2 };
      const bias = isCentered ? calls.floats(cols, parameters, { offset: 1 }) : undefined;
      const out = calls.output(rows * cols, parameters, { offset: 2 });
      runNorm(calls, isCentered, { ...call, bias, out, eps: 0.1 });
      runNormBackward(calls, isCentered, {
        ...call,
        dy: calls.floats(rows * cols, parameters, { offset: 3 }),
        dSum: rows > 5 ? calls.floats(rows * cols, dtype, { offset: 1 }) : undefined,
        dx: calls.output(rows * cols, dtype),
        dWeight: calls.output(cols, parameters, { offset: 2 }),
        dBias: isCentered ? calls.output(cols, parameters) : undefined,
      });
    }
  });
}

function plainCase(isCentered: boolean): ConformanceCase {
  const name = isCentered
    ? 'layerNorm without weight, bias or one of their gradients'
    : 'rmsNorm without weight, or without one of its gradients';
  return recordedCase(name, 'sum', (calls) => {
    const [rows, cols] = [7, 65];
    const x = calls.floats(rows * cols, 'f32');
    const weight = calls.floats(cols, 'f32');
    const bias = calls.floats(cols, 'f32');
    const output = (size: number) => calls.output(size, 'f32');
    for (const given of [{}, { weight }, ...(isCentered ? [{ bias }] : [])]) {
      const out = output(rows * cols);
      runNorm(calls, isCentered, { rows, cols, x, out, ...given, eps: 1e-5 });
    }
    const call = { rows, cols, x, dy: calls.floats(rows * cols, 'f32') };
    runNormBackward(calls, isCentered, { ...call, dx: output(rows * cols) });
    runNormBackward(calls, isCentered, { ...call, weight, dWeight: output(cols) });
    if (isCentered) {
      runNormBackward(calls, isCentered, { ...call, dBias: output(cols) });
    }
  });
}

/**
 * Takes views of a flat parameter, which start at multiples of 256 bytes, as their gradients do.
 */
function flatParametersCase(): ConformanceCase {
  return recordedCase(
    'layerNorm with its parameters in one buffer, and its gradients',
    'sum',
    (calls) => {
      for (const dtype of ['f32', 'f16'] as const) {
        const step = dtype === 'f32' ? 64 : 128; // elements of 256 bytes
        const flat = calls.floats(2 * step, dtype);
        const flatGrad = calls.output(2 * step, dtype);
        const [weight, bias] = [calls.slice(flat, 0, 63), calls.slice(flat, step, 63)];
        const call = { rows: 7, cols: 63, x: calls.floats(441, dtype), weight };
        runNorm(calls, true, { ...call, bias, out: calls.output(441, dtype), eps: 1e-5 });
        const dWeight = calls.slice(flatGrad, 0, 63);
        const dBias = calls.slice(flatGrad, step, 63);
        runNormBackward(calls, true, { ...call, dy: calls.floats(441, dtype), dWeight, dBias });
      }
    },
  );
}

function offCenterCase(): ConformanceCase {
  return recordedCase('layerNorm of rows far from zero', 'cancelling', (calls) => {
    const x = calls.floats(3 * 128, 'f32', { low: 999, high: 1001 });
    runNorm(calls, true, { x, out: calls.output(384, 'f32'), rows: 3, cols: 128, eps: 1e-5 });
  });
}

/** Normalizes a sum as it was stored. The gradient of the sum is added to the norm's. */
function residualCase(dtype: DType): ConformanceCase {
  return recordedCase(`rmsNorm and layerNorm ${dtype} of a sum, and backward`, 'sum', (calls) => {
    for (const [rows, cols] of SHAPES) {
      const size = rows * cols;
      const x = calls.floats(size, dtype, { low: -2, high: 3, offset: 1 });
      const residual = calls.floats(size, dtype, { offset: 3 });
      const weight = calls.floats(cols, dtype);
      const dy = calls.floats(size, dtype);
      const dSum = calls.floats(size, dtype, { offset: 1 });
      const output = () => calls.output(size, dtype, { offset: 2 });
      const call = { rows, cols, x, weight, weightOffset: 1 };
      for (const isCentered of [false, true]) {
        const outputs = { sum: output(), out: calls.output(size, dtype) };
        runNorm(calls, isCentered, { ...call, residual, ...outputs, eps: 0.1 });
        const dWeight = isCentered ? undefined : calls.output(cols, dtype);
        runNormBackward(calls, isCentered, { ...call, dy, dSum, dx: output(), dWeight });
      }
    }
  });
}
