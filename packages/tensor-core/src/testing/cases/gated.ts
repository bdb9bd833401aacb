// Cases of gated and its gradients, from two operands and from the halves of one.

import type { DType } from '@shardweave/dtypes';
import type { GateKind } from '../../kernel-calls/gated.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** The shapes [rows, cols]. 16-bit halves of odd length meet inside a word. */
const SHAPES = [
  [1, 1],
  [3, 7],
  [7, 63],
  [9, 65],
  [2, 1000],
  [2, 2051],
] as const;
const KINDS = ['silu', 'gelu', 'geluTanh'] as const;

export function gatedCases(): ConformanceCase[] {
  return [
    ...KINDS.flatMap((kind) => FLOATS.map((dtype) => gatedCase(kind, dtype, dtype))),
    gatedCase('silu', 'f16', 'f32'),
    gatedCase('silu', 'f32', 'bf16'),
  ];
}

function gatedCase(kind: GateKind, from: DType, to: DType): ConformanceCase {
  return recordedCase(`gated ${kind} ${from} to ${to}, and backward`, 'transcendental', (calls) => {
    for (const [rows, cols] of SHAPES) {
      const size = rows * cols;
      const dy = calls.floats(size, to, { offset: 3 });
      const gate = calls.floats(size, from, { low: -4, high: 4, offset: 1 });
      const up = calls.floats(size, from, { offset: 70 });
      const apart = { kind, gate, up, rows, cols, row: cols };
      calls.run('gated', { ...apart, out: calls.output(size, to, { offset: 2 }) });
      for (const of of ['gate', 'up'] as const) {
        const out = calls.output(size, from, { offset: 66 });
        calls.run('gatedBackward', { ...apart, of, dy, out });
      }
      const [ofGate, ofUp] = [2, 70].map((offset) => calls.output(size, from, { offset }));
      calls.run('gatedBackward', { ...apart, of: 'both', dy, out: ofGate!, outUp: ofUp });
      const packed = calls.floats(2 * size, from, { low: -4, high: 4, offset: 3 });
      const length = 2 * size - cols;
      const halves = {
        kind,
        gate: calls.slice(packed, 0, length),
        up: calls.slice(packed, cols, length),
        rows,
        cols,
        row: 2 * cols,
      };
      calls.run('gated', { ...halves, out: calls.output(size, to) });
      const out = calls.output(2 * size, from, { offset: 2 });
      calls.run('gatedBackward', { ...halves, of: 'both', dy, out });
    }
  });
}
