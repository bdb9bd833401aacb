// Cases of layerNorm and its gradients.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** [rows, cols] */
const SHAPES = [
  [1, 1],
  [3, 7],
  [7, 63],
  [65, 65],
  [2, 1000],
  [300, 5],
  [35, 1030],
] as const;

export function layerNormCases(): ConformanceCase[] {
  return [
    ...FLOATS.map((dtype) => layerNormCase(dtype, dtype)),
    layerNormCase('f32', 'f16'),
    layerNormCase('bf16', 'f32'),
    plainCase(),
    flatParametersCase(),
    offCenterCase(),
  ];
}

/** @param parameters the dtype of weight, bias and output, while the input has `dtype` */
function layerNormCase(dtype: DType, parameters: DType): ConformanceCase {
  const name = `layerNorm ${dtype} with parameters ${parameters}, and backward`;
  return recordedCase(name, 'sum', (calls) => {
    for (const [rows, cols] of SHAPES) {
      const extent = { rows, cols };
      const x = calls.floats(rows * cols, dtype, { low: -2, high: 3, offset: 1 });
      const weight = calls.floats(cols, parameters, { offset: 1 });
      const bias = calls.floats(cols, parameters, { offset: 3 });
      const out = calls.output(rows * cols, parameters, { offset: 2 });
      const stats = { mean: calls.output(rows, 'f32'), rstd: calls.output(rows, 'f32') };
      calls.run('layerNorm', { ...extent, x, weight, bias, out, ...stats, eps: 0.1 });

      const saved = {
        mean: calls.floats(rows, 'f32', { offset: 1 }),
        rstd: calls.floats(rows, 'f32', { low: 0.5, high: 1, offset: 3 }),
      };
      const dy = calls.floats(rows * cols, parameters, { offset: 3 });
      const dx = calls.output(rows * cols, dtype);
      const dWeight = calls.output(cols, parameters, { offset: 2 });
      const dBias = calls.output(cols, parameters);
      const dSum = rows > 5 ? calls.floats(rows * cols, dtype, { offset: 1 }) : undefined;
      const gradients = { dSum, dx, dWeight, dBias };
      calls.run('layerNormBackward', { ...extent, x, weight, ...saved, dy, ...gradients });
    }
  });
}

function plainCase(): ConformanceCase {
  return recordedCase(
    'layerNorm without weight, bias or one of their gradients',
    'sum',
    (calls) => {
      const extent = { rows: 7, cols: 65 };
      const x = calls.floats(455, 'f32');
      const weight = calls.floats(65, 'f32');
      const bias = calls.floats(65, 'f32');
      const none = undefined;
      for (const call of [
        { weight: none, bias: none },
        { weight, bias: none },
        { weight: none, bias },
      ]) {
        const stats = { mean: calls.output(7, 'f32'), rstd: calls.output(7, 'f32') };
        calls.run('layerNorm', {
          ...extent,
          x,
          out: calls.output(455, 'f32'),
          ...call,
          ...stats,
          eps: 1e-5,
        });
      }
      const saved = { mean: calls.floats(7, 'f32'), rstd: calls.floats(7, 'f32') };
      const dy = calls.floats(455, 'f32');
      const dx = calls.output(455, 'f32');
      const common = { ...extent, x, ...saved, dy, weight: undefined };
      const output = () => calls.output(65, 'f32');
      calls.run('layerNormBackward', { ...common, dx });
      calls.run('layerNormBackward', { ...common, dWeight: output() });
      calls.run('layerNormBackward', { ...common, dBias: output() });
    },
  );
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
        const extent = { rows: 7, cols: 63 };
        const flat = calls.floats(2 * step, dtype);
        const flatGrad = calls.output(2 * step, dtype);
        const x = calls.floats(441, dtype);
        const dy = calls.floats(441, dtype);
        const stats = { mean: calls.output(7, 'f32'), rstd: calls.output(7, 'f32') };
        const parameters = { weight: calls.slice(flat, 0, 63), bias: calls.slice(flat, step, 63) };
        const out = calls.output(441, dtype);
        calls.run('layerNorm', { ...extent, x, ...parameters, out, ...stats, eps: 1e-5 });
        const saved = { mean: calls.floats(7, 'f32'), rstd: calls.floats(7, 'f32') };
        const gradients = {
          dWeight: calls.slice(flatGrad, 0, 63),
          dBias: calls.slice(flatGrad, step, 63),
        };
        const given = { ...extent, x, weight: parameters.weight, ...saved, dy };
        calls.run('layerNormBackward', { ...given, ...gradients });
      }
    },
  );
}

function offCenterCase(): ConformanceCase {
  return recordedCase('layerNorm of rows far from zero', 'cancelling', (calls) => {
    const x = calls.floats(3 * 128, 'f32', { low: 999, high: 1001 });
    const stats = { mean: calls.output(3, 'f32'), rstd: calls.output(3, 'f32') };
    const call = { x, weight: undefined, bias: undefined, out: calls.output(384, 'f32'), ...stats };
    calls.run('layerNorm', { ...call, rows: 3, cols: 128, eps: 1e-5 });
  });
}
