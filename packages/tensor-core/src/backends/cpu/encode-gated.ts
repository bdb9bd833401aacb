// Encodes the commands of assembly/gated.ts.

import {
  GATE_BOTH,
  GATE_FIRST,
  GATE_SECOND,
  OP_GATED,
  OP_GATED_BACKWARD,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import type { CommandWriter } from './command-writer.js';
import { TRANSCENDENTAL_NS, UNARY_CODES } from './encode-elementwise.js';

const GATE_PARTS = { gate: GATE_FIRST, up: GATE_SECOND, both: GATE_BOTH } as const;

export function gated(call: KernelCalls['gated'], w: CommandWriter): void {
  const { kind, rows, cols, row } = call;
  w.start(OP_GATED, 'gated').int(ofKind('gated', UNARY_CODES, kind));
  w.view(call.gate).view(call.up).view(call.out).int(rows, cols, row);
  w.commit(w.chunksFor(rows * cols * TRANSCENDENTAL_NS));
}

export function gatedBackward(call: KernelCalls['gatedBackward'], w: CommandWriter): void {
  const { kind, of, rows, cols, row } = call;
  w.start(OP_GATED_BACKWARD, 'gatedBackward').int(
    ofKind('gatedBackward', UNARY_CODES, kind),
    ofKind('gatedBackward', GATE_PARTS, of),
  );
  w.view(call.gate).view(call.up).view(call.dy).view(call.out).view(call.outUp);
  w.int(rows, cols, row);
  w.commit(w.chunksFor(rows * cols * TRANSCENDENTAL_NS * (of === 'both' ? 2 : 1)));
}
