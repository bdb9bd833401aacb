// Encodes the commands of assembly/embedding.ts.

import { OP_EMBEDDING, OP_EMBEDDING_BACKWARD } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function embedding(call: KernelCalls['embedding'], w: CommandWriter): void {
  const { rows, cols, count } = call;
  w.start(OP_EMBEDDING, 'embedding').view(call.table).address(call.ids).view(call.out);
  w.int(rows, cols, count);
  w.commit(w.chunksFor(count * cols * 0.5, count));
}

export function embeddingBackward(call: KernelCalls['embeddingBackward'], w: CommandWriter): void {
  const { rows, cols, count } = call;
  const heads = w.temp(rows * 4);
  const links = w.temp(count * 4);
  w.start(OP_EMBEDDING_BACKWARD, 'embeddingBackward').address(call.ids).view(call.dy);
  w.view(call.dTable).int(rows, cols, count, heads, links);
  w.commit(w.chunksFor((rows + count) * cols * 0.5, rows));
  w.release();
}
