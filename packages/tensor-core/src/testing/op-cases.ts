// All checks of the ops: values and gradients compared with float64 twins, on any device. Sizes are
// small and odd, so that all cases run within seconds even on a software driver.

import type { OpCase } from './kit/op-check.js';
import { attentionOpCases } from './ops/attention.js';
import { compareOpCases } from './ops/compare.js';
import { dropoutOpCases } from './ops/dropout.js';
import { elementwiseOpCases } from './ops/elementwise.js';
import { gatedOpCases } from './ops/gated.js';
import { gatherOpCases } from './ops/gather.js';
import { linearCrossEntropyOpCases } from './ops/linear-cross-entropy.js';
import { matmulOpCases } from './ops/matmul.js';
import { reduceOpCases } from './ops/reduce.js';
import { rotaryOpCases } from './ops/rotary.js';
import { rowNormOpCases } from './ops/row-norm.js';
import { rowOpCases } from './ops/rows.js';
import { shapeOpCases } from './ops/shape.js';

/**
 * Returns the cases of all ops, each independent of the others. Pass a device, outside any scope,
 * to a case's `run`, which rejects with ConformanceError where an op differs or leaves memory
 * behind.
 */
export function opCases(): OpCase[] {
  return [
    ...elementwiseOpCases(),
    ...compareOpCases(),
    ...gatedOpCases(),
    ...gatherOpCases(),
    ...matmulOpCases(),
    ...reduceOpCases(),
    ...rowOpCases(),
    ...linearCrossEntropyOpCases(),
    ...rowNormOpCases(),
    ...rotaryOpCases(),
    ...attentionOpCases(),
    ...dropoutOpCases(),
    ...shapeOpCases(),
  ];
}
