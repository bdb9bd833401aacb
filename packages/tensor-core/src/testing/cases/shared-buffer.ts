// Cases of a kernel that reads and writes separate parts of one buffer. Kernels allow that. WebGPU
// does not without care: bindings start at multiples of 256 bytes, and a buffer is either read or
// written in a dispatch.

import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/**
 * The elements between an input and an output, which share 256 bytes with some and not with others.
 */
const GAPS = [0, 2, 300] as const;

export function sharedBufferCases(): ConformanceCase[] {
  return [
    recordedCase('one buffer: input and output of affine', 'arithmetic', affine),
    recordedCase('one buffer: both inputs and the output of binary', 'arithmetic', binary),
    recordedCase('one buffer: operands of matmul', 'sum', matmul),
    recordedCase('one buffer: outputs of layerNorm', 'sum', layerNorm),
    recordedCase('one buffer: state of adam', 'transcendental', adam),
  ];
}

function affine(calls: CallRecorder): void {
  for (const dtype of FLOATS) {
    for (const gap of GAPS) {
      const flat = calls.floats(2 * 66 + gap, dtype, { isWritten: true });
      const [low, high] = [calls.slice(flat, 0, 65), calls.slice(flat, 66 + gap, 65)];
      calls.run('affine', { x: low, out: high, scale: 2, shift: 1 });
      calls.run('affine', { x: high, out: low, scale: 0.5, shift: 1 });
    }
  }
}

function binary(calls: CallRecorder): void {
  const walk = { shape: [64], aStrides: [1], bStrides: [1] };
  for (const gap of GAPS) {
    const flat = calls.floats(3 * 64 + 2 * gap, 'f32', { isWritten: true });
    const part = (i: number) => calls.slice(flat, i * (64 + gap), 64);
    calls.run('binary', { kind: 'add', a: part(0), b: part(1), out: part(2), ...walk });
    calls.run('binary', { kind: 'mul', a: part(0), b: part(1), out: part(1), ...walk });
  }
}

function matmul(calls: CallRecorder): void {
  for (const dtype of ['f32', 'f16'] as const) {
    const flat = calls.floats(1200, dtype, { isWritten: true });
    calls.run('matmul', {
      a: calls.slice(flat, 1, 60),
      b: calls.slice(flat, 700, 120),
      out: calls.slice(flat, 300, 200),
      bias: calls.slice(flat, 1101, 20),
      m: 10,
      n: 20,
      k: 6,
      transposeA: false,
      transposeB: false,
      aRow: 6,
      bRow: 20,
      outRow: 20,
      batch: [1, 1],
      aBatch: [0, 0],
      bBatch: [0, 0],
      outBatch: [0, 0],
      alpha: 1,
      accumulate: true,
    });
  }
}

function layerNorm(calls: CallRecorder): void {
  const flat = calls.floats(1000, 'f32', { isWritten: true });
  calls.run('rowNorm', {
    isCentered: true,
    x: calls.slice(flat, 1, 7 * 33),
    weight: calls.slice(flat, 900, 33),
    bias: calls.slice(flat, 940, 33),
    out: calls.slice(flat, 400, 7 * 33),
    mean: calls.slice(flat, 700, 7),
    rstd: calls.slice(flat, 707, 7),
    rows: 7,
    cols: 33,
    eps: 0.1,
  });
}

function adam(calls: CallRecorder): void {
  const flat = calls.floats(500, 'f32', { isWritten: true, low: 0.1 });
  const group = { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weightDecay: 0.1 };
  calls.run('adam', {
    param: calls.slice(flat, 0, 101),
    grad: calls.slice(flat, 101, 101),
    expAvg: calls.slice(flat, 202, 101),
    expAvgSq: calls.slice(flat, 303, 101),
    gradScale: calls.slice(flat, 450, 1),
    groups: [{ ...group, biasCorrection1: 0.2, biasCorrection2: 0.1, decoupled: true }],
    segments: [{ start: 2, length: 90, group: 0 }],
  });
}
