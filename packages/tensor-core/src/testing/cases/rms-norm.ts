// Cases of rmsNorm and its gradients, and of both norms of a sum with a residual.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/**
 * The shapes [rows, cols]: more rows than a part of the weight's gradient has, and rows of several
 * blocks.
 */
const SHAPES = [
  [1, 1],
  [3, 7],
  [7, 63],
  [65, 65],
  [2, 1000],
  [300, 5],
  [2, 2051],
] as const;

export function rmsNormCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => rmsNormCase(dtype, dtype)),
    rmsNormCase('f32', 'f16'),
    rmsNormCase('bf16', 'f32'),
    plainCase(),
    ...FLOATS.map(residualCase),
  ];
}

/** @param parameters the dtype of weight and output, while the input has `dtype` */
function rmsNormCase(dtype: DType, parameters: DType): ConformanceCase {
  const name = `rmsNorm ${dtype} with weight ${parameters}, and backward`;
  return recordedCase(name, 'sum', (calls) => {
    for (const [i, [rows, cols]] of SHAPES.entries()) {
      const extent = { rows, cols, weightOffset: i % 2 };
      const none = { residual: undefined, sum: undefined };
      const x = calls.floats(rows * cols, dtype, { low: -2, high: 3, offset: 1 });
      const weight = calls.floats(cols, parameters, { offset: 3 });
      const out = calls.output(rows * cols, parameters, { offset: 2 });
      const rstd = calls.output(rows, 'f32');
      calls.run('rmsNorm', { ...extent, ...none, x, weight, out, rstd, eps: 0.1 });

      const saved = { rstd: calls.floats(rows, 'f32', { low: 0.5, offset: 3 }) };
      const dy = calls.floats(rows * cols, parameters, { offset: 3 });
      const dx = calls.output(rows * cols, dtype);
      const dWeight = calls.output(cols, parameters, { offset: 2 });
      const call = { ...extent, x, weight, ...saved, dy, dx, dWeight };
      calls.run('rmsNormBackward', { ...call, dSum: undefined });
    }
  });
}

function plainCase(): ConformanceCase {
  return recordedCase('rmsNorm without weight, or without one of its gradients', 'sum', (calls) => {
    const [rows, cols] = [7, 65];
    const extent = { rows, cols, weightOffset: 0 };
    const x = calls.floats(rows * cols, 'f32');
    const rstd = calls.floats(rows, 'f32', { low: 0.5 });
    const dy = calls.floats(rows * cols, 'f32');
    const weight = calls.floats(cols, 'f32');
    const output = (size: number) => calls.output(size, 'f32');
    const none = { residual: undefined, sum: undefined, dSum: undefined };
    const [out, made] = [output(rows * cols), output(rows)];
    calls.run('rmsNorm', { ...extent, ...none, x, weight: undefined, out, rstd: made, eps: 1e-6 });
    const call = { ...extent, ...none, x, rstd, dy };
    const dx = output(rows * cols);
    calls.run('rmsNormBackward', { ...call, weight: undefined, dx, dWeight: undefined });
    const dWeight = output(cols);
    calls.run('rmsNormBackward', { ...call, weight, dx: undefined, dWeight });
  });
}

/** Normalizes a sum as it was stored. The gradient of the sum is added to the norm's. */
function residualCase(dtype: DType): ConformanceCase {
  return recordedCase(`rmsNorm and layerNorm ${dtype} of a sum, and backward`, 'sum', (calls) => {
    for (const [rows, cols] of SHAPES) {
      const size = rows * cols;
      const extent = { rows, cols };
      const x = calls.floats(size, dtype, { low: -2, high: 3, offset: 1 });
      const residual = calls.floats(size, dtype, { offset: 3 });
      const weight = calls.floats(cols, dtype);
      const outputs = () => ({
        sum: calls.output(size, dtype, { offset: 2 }),
        out: calls.output(size, dtype),
        rstd: calls.output(rows, 'f32'),
      });
      const call = { ...extent, x, residual, weight, eps: 0.1 };
      calls.run('rmsNorm', { ...call, ...outputs(), weightOffset: 1 });
      const mean = calls.output(rows, 'f32');
      calls.run('layerNorm', { ...call, ...outputs(), bias: undefined, mean });

      const rstd = calls.floats(rows, 'f32', { low: 0.5 });
      const dy = calls.floats(size, dtype);
      const dSum = calls.floats(size, dtype, { offset: 1 });
      const backward = { ...extent, x, weight, rstd, dy, dSum };
      const dWeight = calls.output(cols, dtype);
      const dx = () => calls.output(size, dtype, { offset: 2 });
      calls.run('rmsNormBackward', { ...backward, weightOffset: 1, dx: dx(), dWeight });
      calls.run('layerNormBackward', { ...backward, mean: calls.floats(rows, 'f32'), dx: dx() });
    }
  });
}
