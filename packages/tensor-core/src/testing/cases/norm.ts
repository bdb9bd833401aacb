// Cases of normNodes, normTree and clipFactor.

import type { DType } from '@shardweave/dtypes';
import { NORM_NODE_ELEMENTS } from '../../kernel-calls/norm.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, SIZES } from '../kit/sizes.js';

export function normCases(): ConformanceCase[] {
  return [...FLOATS.map(blocksCase), treeCase(), factorCase()];
}

/** Returns cases of whole nodes, which take 128 KiB each. */
export function manyNormCases(): ConformanceCase[] {
  return FLOATS.map(nodesCase);
}

/** Takes sizes around one block. */
function blocksCase(dtype: DType): ConformanceCase {
  return recordedCase(`normNodes ${dtype}`, 'sum', (calls) => {
    for (const size of [...SIZES, 127, 128, 129]) {
      const x = calls.floats(size, dtype, { offset: 3 });
      const spans = [{ start: 0, length: size }];
      for (const power of [2, 1, 3, 0.5, Infinity]) {
        calls.run('normNodes', { x, out: calls.output(1, 'f32', { offset: 1 }), spans, power });
      }
    }
  });
}

/** Takes several spans with gaps between them, from one element to more than a node. */
function nodesCase(dtype: DType): ConformanceCase {
  return recordedCase(`normNodes ${dtype} of whole nodes`, 'longSum', (calls) => {
    const lengths = [1, 128, 129, NORM_NODE_ELEMENTS + 1, 7, NORM_NODE_ELEMENTS];
    let end = 0;
    const spans = lengths.map((length, i) => {
      const start = end + i;
      end = start + length;
      return { start, length };
    });
    const x = calls.floats(end, dtype, { low: 0.1, offset: 1 });
    for (const power of [2, Infinity]) {
      calls.run('normNodes', { x, out: calls.output(7, 'f32', { offset: 2 }), spans, power });
    }
  });
}

/** Compares bits, since every device adds in the order of the tree and rounds each sum alike. */
function treeCase(): ConformanceCase {
  return recordedCase('normTree', 'exact', (calls) => {
    for (const length of [1, 2, 3, 7, 255, 256, 257, 1000]) {
      const x = calls.floats(length + 3, 'f32', { low: 0, offset: 2 });
      const spans = [{ start: 1, length }];
      for (const isMax of [false, true]) {
        calls.run('normTree', { x, out: calls.output(1, 'f32', { offset: 1 }), spans, isMax });
      }
    }
    const lengths = [300, 1, 5, 256, 1, 1030, 2, 3, 4, 5, 6, 7];
    let end = 0;
    const spans = lengths.map((length) => {
      const start = end + 2;
      end = start + length;
      return { start, length };
    });
    const x = calls.floats(end + 1, 'f32', { low: 0 });
    calls.run('normTree', { x, out: calls.output(spans.length, 'f32'), spans, isMax: false });
  });
}

/** Compares bits of root and quotient, at odd and even exponents. */
function factorCase(): ConformanceCase {
  return recordedCase('clipFactor', 'exact', (calls) => {
    const squares = Array.from({ length: 60 }, () => 2 ** calls.random.uniform(-60, 60));
    const exact = [4, 9, 2, 0.25, 1 - 2 ** -24, 1 + 2 ** -23, 2 - 2 ** -23, 4 - 2 ** -22];
    for (const value of [...squares, ...exact]) {
      for (const [maxNorm, unscale] of [
        [1, 1],
        [calls.random.uniform(0, 2), 2 ** -16],
        [calls.random.uniform(0, 2) * Math.sqrt(value), 0.3],
        [Infinity, 0.125],
      ] as const) {
        const outputs = { norm: calls.output(1, 'f32'), scale: calls.output(1, 'f32') };
        const input = calls.values([value], 'f32', { offset: 1 });
        calls.run('clipFactor', { squares: input, ...outputs, maxNorm, unscale });
      }
    }
  });
}
