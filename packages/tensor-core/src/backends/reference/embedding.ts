// Embedding looks up rows of a table by id, and its gradient sums rows by id.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function embedding(call: KernelCalls['embedding'], open: Open): void {
  const { rows, cols, count } = call;
  const table = open(call.table); // [rows, cols]
  const ids = open(call.ids); // [count]
  const out = open(call.out); // [count, cols]
  for (let i = 0; i < count; i++) {
    const id = ids.get(i);
    const isValid = id >= 0 && id < rows;
    for (let j = 0; j < cols; j++) {
      out.set(i * cols + j, isValid ? table.get(id * cols + j) : 0);
    }
  }
}

export function embeddingBackward(call: KernelCalls['embeddingBackward'], open: Open): void {
  const { rows, cols, count } = call;
  const ids = open(call.ids); // [count]
  const dy = open(call.dy); // [count, cols]
  const dTable = open(call.dTable); // [rows, cols]
  const sums = new Float64Array(rows * cols);
  for (let i = 0; i < count; i++) {
    const id = ids.get(i);
    if (id < 0 || id >= rows) {
      continue;
    }
    for (let j = 0; j < cols; j++) {
      sums[id * cols + j]! += dy.get(i * cols + j);
    }
  }
  sums.forEach((sum, i) => {
    dTable.set(i, sum);
  });
}
