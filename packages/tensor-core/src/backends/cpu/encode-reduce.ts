// Encodes the commands of assembly/reduce.ts.

import {
  OP_EXTREMUM_BACKWARD,
  OP_REDUCE,
  REDUCE_MAX,
  REDUCE_MEAN,
  REDUCE_MIN,
  REDUCE_SUM,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import { type CommandWriter, columnUnits } from './command-writer.js';

const REDUCE_CODES = {
  sum: REDUCE_SUM,
  mean: REDUCE_MEAN,
  max: REDUCE_MAX,
  min: REDUCE_MIN,
} as const;

export function reduce(call: KernelCalls['reduce'], w: CommandWriter): void {
  const { outer, dim, inner } = call;
  w.start(OP_REDUCE, 'reduce').int(ofKind('reduce', REDUCE_CODES, call.kind));
  w.view(call.x).view(call.out).int(outer, dim, inner);
  w.commit(w.chunksFor(outer * dim * inner * 0.4, columnUnits(outer, inner)));
}

export function extremumBackward(call: KernelCalls['extremumBackward'], w: CommandWriter): void {
  const { outer, dim, inner } = call;
  w.start(OP_EXTREMUM_BACKWARD, 'extremumBackward');
  w.view(call.x).view(call.y).view(call.dy).view(call.out).int(outer, dim, inner);
  w.commit(w.chunksFor(outer * dim * inner, columnUnits(outer, inner)));
}
