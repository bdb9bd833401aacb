// layerNorm, its gradient to the input and to the parameters.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { FLOATS } from '../sizes.js';

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

/** @param parameters dtype of weight, bias and output; the input has `dtype`. */
function layerNormCase(dtype: DType, parameters: DType): ConformanceCase {
  const name = `layerNorm ${dtype} with parameters ${parameters}, and backward`;
  return twinCase(name, 'sum', (twin) => {
    for (const [rows, cols] of SHAPES) {
      const extent = { rows, cols };
      const x = twin.floats(rows * cols, dtype, { low: -2, high: 3, offset: 1 });
      const weight = twin.floats(cols, parameters, { offset: 1 });
      const bias = twin.floats(cols, parameters, { offset: 3 });
      const out = twin.output(rows * cols, parameters, { offset: 2 });
      const stats = { mean: twin.output(rows, 'f32'), rstd: twin.output(rows, 'f32') };
      twin.run('layerNorm', { ...extent, x, weight, bias, out, ...stats, eps: 0.1 });

      const saved = {
        mean: twin.floats(rows, 'f32', { offset: 1 }),
        rstd: twin.floats(rows, 'f32', { low: 0.5, high: 1, offset: 3 }),
      };
      const dy = twin.floats(rows * cols, parameters, { offset: 3 });
      const dx = twin.output(rows * cols, dtype);
      const dWeight = twin.output(cols, parameters, { offset: 2 });
      const dBias = twin.output(cols, parameters);
      const dSum = rows > 5 ? twin.floats(rows * cols, dtype, { offset: 1 }) : undefined;
      const gradients = { dSum, dx, dWeight, dBias };
      twin.run('layerNormBackward', { ...extent, x, weight, ...saved, dy, ...gradients });
    }
  });
}

function plainCase(): ConformanceCase {
  return twinCase('layerNorm without weight, bias or one of their gradients', 'sum', (twin) => {
    const extent = { rows: 7, cols: 65 };
    const x = twin.floats(455, 'f32');
    const weight = twin.floats(65, 'f32');
    const bias = twin.floats(65, 'f32');
    const none = undefined;
    for (const call of [
      { weight: none, bias: none },
      { weight, bias: none },
      { weight: none, bias },
    ]) {
      const stats = { mean: twin.output(7, 'f32'), rstd: twin.output(7, 'f32') };
      twin.run('layerNorm', {
        ...extent,
        x,
        out: twin.output(455, 'f32'),
        ...call,
        ...stats,
        eps: 1e-5,
      });
    }
    const saved = { mean: twin.floats(7, 'f32'), rstd: twin.floats(7, 'f32') };
    const dy = twin.floats(455, 'f32');
    const dx = twin.output(455, 'f32');
    const common = { ...extent, x, ...saved, dy, weight: undefined };
    const output = () => twin.output(65, 'f32');
    twin.run('layerNormBackward', { ...common, dx });
    twin.run('layerNormBackward', { ...common, dWeight: output() });
    twin.run('layerNormBackward', { ...common, dBias: output() });
  });
}

/** Inside a flat parameter, views start at multiples of 256 bytes; so do their gradients. */
function flatParametersCase(): ConformanceCase {
  return twinCase(
    'layerNorm with its parameters in one buffer, and its gradients',
    'sum',
    (twin) => {
      for (const dtype of ['f32', 'f16'] as const) {
        const step = dtype === 'f32' ? 64 : 128; // elements of 256 bytes
        const extent = { rows: 7, cols: 63 };
        const flat = twin.floats(2 * step, dtype);
        const flatGrad = twin.output(2 * step, dtype);
        const x = twin.floats(441, dtype);
        const dy = twin.floats(441, dtype);
        const stats = { mean: twin.output(7, 'f32'), rstd: twin.output(7, 'f32') };
        const parameters = { weight: twin.slice(flat, 0, 63), bias: twin.slice(flat, step, 63) };
        const out = twin.output(441, dtype);
        twin.run('layerNorm', { ...extent, x, ...parameters, out, ...stats, eps: 1e-5 });
        const saved = { mean: twin.floats(7, 'f32'), rstd: twin.floats(7, 'f32') };
        const gradients = {
          dWeight: twin.slice(flatGrad, 0, 63),
          dBias: twin.slice(flatGrad, step, 63),
        };
        const given = { ...extent, x, weight: parameters.weight, ...saved, dy };
        twin.run('layerNormBackward', { ...given, ...gradients });
      }
    },
  );
}

function offCenterCase(): ConformanceCase {
  return twinCase('layerNorm of rows far from zero', 'cancelling', (twin) => {
    const x = twin.floats(3 * 128, 'f32', { low: 999, high: 1001 });
    const stats = { mean: twin.output(3, 'f32'), rstd: twin.output(3, 'f32') };
    const call = { x, weight: undefined, bias: undefined, out: twin.output(384, 'f32'), ...stats };
    twin.run('layerNorm', { ...call, rows: 3, cols: 128, eps: 1e-5 });
  });
}
