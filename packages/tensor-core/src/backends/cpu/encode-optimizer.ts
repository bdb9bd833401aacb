// Encodes the commands of assembly/optimizer.ts. Groups and segments travel with the command, as
// tables.

import { OP_ADAM, OP_SGD } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { AdamGroup, Segment, SgdGroup } from '../../kernel-calls/optimizer.js';
import type { CommandWriter } from './command-writer.js';

const SEGMENT_WORDS = 3;

export function adam(call: KernelCalls['adam'], w: CommandWriter): void {
  const table = buildTable(call.groups.map(adamWords), call.segments);
  w.start(OP_ADAM, 'adam').address(call.param).view(call.grad).address(call.expAvg);
  w.address(call.expAvgSq).address(call.gradScale).int(call.param.size);
  w.payload(table.bytes, [0, table.segmentsAt]).int(call.segments.length);
  w.commit(w.chunksFor(call.param.size));
}

export function sgd(call: KernelCalls['sgd'], w: CommandWriter): void {
  const table = buildTable(call.groups.map(sgdWords), call.segments);
  w.start(OP_SGD, 'sgd').address(call.param).view(call.grad).address(call.momentumBuffer);
  w.address(call.gradScale).int(call.param.size);
  w.payload(table.bytes, [0, table.segmentsAt]).int(call.segments.length);
  w.commit(w.chunksFor(call.param.size * 0.6));
}

function adamWords(group: AdamGroup): readonly number[] {
  const { lr, beta1, beta2, weightDecay, decoupled } = group;
  return [
    decoupled ? 1 - lr * weightDecay : 1,
    decoupled ? 0 : weightDecay,
    beta1,
    1 - beta1,
    beta2,
    1 - beta2,
    lr / group.biasCorrection1,
    Math.sqrt(group.biasCorrection2),
    group.eps,
  ];
}

function sgdWords(group: SgdGroup): readonly number[] {
  const { lr, momentum, dampening, weightDecay, nesterov, isFirstStep } = group;
  return [lr, momentum, 1 - dampening, weightDecay, nesterov ? 1 : 0, isFirstStep ? 1 : 0];
}

/** Returns a table of all groups as f32, followed by all segments as u32. */
function buildTable(
  groups: readonly (readonly number[])[],
  segments: readonly Segment[],
): { bytes: Uint8Array; segmentsAt: number } {
  const values = groups.flat();
  const words = new Uint32Array(values.length + segments.length * SEGMENT_WORDS);
  new Float32Array(words.buffer).set(values);
  let at = values.length;
  for (const { start, length, group } of segments) {
    words[at++] = start;
    words[at++] = length;
    words[at++] = group;
  }
  return { bytes: new Uint8Array(words.buffer), segmentsAt: values.length * 4 };
}
