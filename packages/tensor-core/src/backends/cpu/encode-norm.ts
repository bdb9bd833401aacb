// Encodes the commands of assembly/norm.ts. Spans travel with the command, as a table.

import {
  NORM_MAX,
  NORM_POWER,
  NORM_SQUARE,
  OP_CLIP_FACTOR,
  OP_NORM_NODES,
  OP_NORM_TREE,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Span } from '../../kernel-calls/norm.js';
import { numNormNodes, spanWords } from '../../norm-spans.js';
import type { CommandWriter } from './command-writer.js';

export function normNodes(call: KernelCalls['normNodes'], w: CommandWriter): void {
  const { x, out, spans, power } = call;
  const nodes = numNormNodes(spans);
  const kind = power === 2 ? NORM_SQUARE : power === Infinity ? NORM_MAX : NORM_POWER;
  w.start(OP_NORM_NODES, 'normNodes').view(x).address(out).int(kind).float(power).int(nodes);
  w.payload(tableOf(spans), [0]).int(spans.length);
  const elements = spans.reduce((sum, { length }) => sum + length, 0);
  w.commit(w.chunksFor(elements * 0.3, nodes));
}

export function normTree(call: KernelCalls['normTree'], w: CommandWriter): void {
  const { x, out, spans, isMax } = call;
  w.start(OP_NORM_TREE, 'normTree')
    .address(x)
    .address(out)
    .int(isMax ? 1 : 0);
  w.payload(tableOf(spans), [0]).int(spans.length);
  w.commit(1);
}

export function clipFactor(call: KernelCalls['clipFactor'], w: CommandWriter): void {
  const { squares, norm, scale, maxNorm, unscale } = call;
  w.start(OP_CLIP_FACTOR, 'clipFactor').address(squares).address(norm).address(scale);
  w.float(maxNorm).float(unscale).commit(1);
}

function tableOf(spans: readonly Span[]): Uint8Array {
  return new Uint8Array(spanWords(spans).buffer);
}
