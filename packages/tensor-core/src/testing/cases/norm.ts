// normNodes, normTree and clipFactor.

import type { DType } from '@shardweave/dtypes';
import { NORM_NODE_ELEMENTS } from '../../kernel-calls/updates.js';
import { type ConformanceCase, twinCase } from '../conformance-case.js';
import { FLOATS, SIZES } from '../sizes.js';

export function normCases(): ConformanceCase[] {
  return [...FLOATS.map(blocksCase), treeCase(), factorCase()];
}

/** Cases of whole nodes, which take 128 KiB. */
export function manyNormCases(): ConformanceCase[] {
  return FLOATS.map(nodesCase);
}

/** Around blocks. */
function blocksCase(dtype: DType): ConformanceCase {
  return twinCase(`normNodes ${dtype}`, 'sum', (twin) => {
    for (const size of [...SIZES, 127, 128, 129]) {
      const x = twin.floats(size, dtype, { offset: 3 });
      const spans = [{ start: 0, length: size }];
      for (const power of [2, 1, 3, 0.5, Infinity]) {
        twin.run('normNodes', { x, out: twin.output(1, 'f32', { offset: 1 }), spans, power });
      }
    }
  });
}

/** Several spans with gaps, of less than a block to more than a node. */
function nodesCase(dtype: DType): ConformanceCase {
  return twinCase(`normNodes ${dtype} of whole nodes`, 'longSum', (twin) => {
    const lengths = [1, 128, 129, NORM_NODE_ELEMENTS + 1, 7, NORM_NODE_ELEMENTS];
    let end = 0;
    const spans = lengths.map((length, i) => {
      const start = end + i;
      end = start + length;
      return { start, length };
    });
    const x = twin.floats(end, dtype, { low: 0.1, offset: 1 });
    for (const power of [2, Infinity]) {
      twin.run('normNodes', { x, out: twin.output(7, 'f32', { offset: 2 }), spans, power });
    }
  });
}

/** Bits: the order of the tree is the same on every device, and a sum of two f32s is too. */
function treeCase(): ConformanceCase {
  return twinCase('normTree', 'exact', (twin) => {
    for (const length of [1, 2, 3, 7, 255, 256, 257, 1000]) {
      const x = twin.floats(length + 3, 'f32', { low: 0, offset: 2 });
      const spans = [{ start: 1, length }];
      for (const isMax of [false, true]) {
        twin.run('normTree', { x, out: twin.output(1, 'f32', { offset: 1 }), spans, isMax });
      }
    }
    const lengths = [300, 1, 5, 256, 1, 1030, 2, 3, 4, 5, 6, 7];
    let end = 0;
    const spans = lengths.map((length) => {
      const start = end + 2;
      end = start + length;
      return { start, length };
    });
    const x = twin.floats(end + 1, 'f32', { low: 0 });
    twin.run('normTree', { x, out: twin.output(spans.length, 'f32'), spans, isMax: false });
  });
}

/** Bits, of root and quotient, at exponents odd and even. */
function factorCase(): ConformanceCase {
  return twinCase('clipFactor', 'exact', (twin) => {
    const squares = Array.from({ length: 60 }, () => 2 ** twin.random.uniform(-60, 60));
    const exact = [4, 9, 2, 0.25, 1 - 2 ** -24, 1 + 2 ** -23, 2 - 2 ** -23, 4 - 2 ** -22];
    for (const value of [...squares, ...exact]) {
      for (const [maxNorm, unscale] of [
        [1, 1],
        [twin.random.uniform(0, 2), 2 ** -16],
        [twin.random.uniform(0, 2) * Math.sqrt(value), 0.3],
        [Infinity, 0.125],
      ] as const) {
        const outputs = { norm: twin.output(1, 'f32'), scale: twin.output(1, 'f32') };
        const input = twin.values([value], 'f32', { offset: 1 });
        twin.run('clipFactor', { squares: input, ...outputs, maxNorm, unscale });
      }
    }
  });
}
