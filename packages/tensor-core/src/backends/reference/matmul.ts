// Batched matrix products of strided, optionally transposed operands.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { hasWideLogits, runEpilogue, slopesOf, sumsOf } from '../../kernel-calls/matmul.js';
import { crossEntropyBackward } from './cross-entropy.js';
import { type Open, openElements, valuesOf } from './elements.js';
import { binary, unary, unaryBackward } from './elementwise.js';
import { reduce } from './reduce.js';

export function matmul(call: KernelCalls['matmul'], open: Open): void {
  if (hasWideLogits(call)) {
    const { size } = call.out;
    const logits = { ...call.out, byteOffset: 0, dtype: 'f32' } as const;
    const bytes = new ArrayBuffer(4 * size);
    const openWide: Open = (view) => (view === logits ? openElements(bytes, view) : open(view));
    matmul({ ...call, out: logits, epilogue: undefined }, openWide);
    crossEntropyBackward(slopesOf(call, logits), openWide);
    return;
  }
  const { m, n, k, aRow, bRow, outRow, aBatch, bBatch, outBatch } = call;
  const a = valuesOf(open(call.a));
  const b = valuesOf(open(call.b));
  const out = open(call.out);
  const bias = call.bias && open(call.bias); // [n]
  for (let outer = 0; outer < call.batch[0]; outer++) {
    for (let inner = 0; inner < call.batch[1]; inner++) {
      const aStart = outer * aBatch[0] + inner * aBatch[1];
      const bStart = outer * bBatch[0] + inner * bBatch[1];
      const outStart = outer * outBatch[0] + inner * outBatch[1];
      for (let row = 0; row < m; row++) {
        for (let col = 0; col < n; col++) {
          let sum = 0;
          for (let i = 0; i < k; i++) {
            const aAt = call.transposeA ? i * aRow + row : row * aRow + i;
            const bAt = call.transposeB ? col * bRow + i : i * bRow + col;
            sum += a[aStart + aAt]! * b[bStart + bAt]!;
          }
          const at = outStart + row * outRow + col;
          const before = call.accumulate ? out.get(at) : 0;
          out.set(at, call.alpha * sum + (bias?.get(col) ?? 0) + before);
        }
      }
    }
  }
  for (const { x, out, inner } of sumsOf(call)) {
    reduce({ kind: 'sum', x, out, outer: 1, dim: k, inner }, open);
  }
  runEpilogue(call, {
    binary: (own) => binary(own, open),
    unary: (own) => unary(own, open),
    unaryBackward: (own) => unaryBackward(own, open),
    crossEntropyBackward: (own) => crossEntropyBackward(own, open),
  });
}
