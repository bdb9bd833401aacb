// Commands of assembly/attention.ts, and how their work is split.

import { byteSize } from '@shardweave/dtypes';
import { OP_ATTENTION, OP_ATTENTION_BACKWARD } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { AttentionOperands } from '../../kernel-calls/products.js';
import { type CommandWriter, DTYPE_CODES } from './command-writer.js';

/** What one thread does; decides only how far to split. */
const FLOP_PER_NS = 25;
/** Queries of a block; assembly/attention.ts. */
const BLOCK_ROWS = 64;

export function attention(call: KernelCalls['attention'], w: CommandWriter): void {
  const units = call.batch * call.numHeads * Math.ceil(call.numQueries / BLOCK_ROWS);
  operands(call, w.start(OP_ATTENTION, 'attention'));
  w.commit(Math.min(units, w.chunksFor((4 * productsOf(call)) / FLOP_PER_NS)));
}

export function attentionBackward(call: KernelCalls['attentionBackward'], w: CommandWriter): void {
  const { batch, numHeads, numKvHeads, numQueries, dim, q } = call;
  const wanted = w.chunksFor((10 * productsOf(call)) / FLOP_PER_NS);
  const chunks = Math.min(batch * numKvHeads, wanted);
  // 16-bit gradients of queries are added up in f32, one group of heads a chunk at a time.
  const rows = (chunks * numQueries * numHeads) / numKvHeads;
  const temp = byteSize(q.dtype) === 4 ? 0 : w.temp(rows * 4 * Math.ceil(dim / 8) * 8);
  operands(call, w.start(OP_ATTENTION_BACKWARD, 'attentionBackward'));
  w.address(call.dOut).address(call.dq).address(call.dk).address(call.dv);
  w.int(temp).commit(chunks);
  w.release();
}

/** Multiplications of one product over the pairs that positions let see each other, roughly. */
function productsOf(call: AttentionOperands): number {
  const { batch, numHeads, numQueries, numKeys, dim, window, isCausal } = call;
  const seen = window > 0 ? Math.min(numKeys, window) : numKeys;
  return (batch * numHeads * numQueries * seen * dim) / (isCausal ? 2 : 1);
}

function operands(call: AttentionOperands, w: CommandWriter): void {
  const { dropout, qStrides, kStrides, vStrides } = call;
  w.int(DTYPE_CODES[call.q.dtype]).address(call.q).address(call.k).address(call.v);
  w.address(call.out).address(call.stats).view(call.mask);
  w.address(call.querySegments).address(call.keySegments);
  w.int(call.batch, call.numHeads, call.numKvHeads, call.numQueries, call.numKeys, call.dim);
  w.float(call.scale).int(call.isCausal ? 1 : 0, call.window, call.queryOffset);
  for (const { batch, head, row } of [qStrides, kStrides, vStrides]) {
    w.int(batch, head, row);
  }
  w.int(...call.maskStrides);
  w.int(Math.floor((dropout?.p ?? 0) * 2 ** 32)).float(dropout ? 1 / (1 - dropout.p) : 0);
  const first = dropout?.counterOffset ?? 0;
  w.int(dropout?.key0 ?? 0, dropout?.key1 ?? 0, first, Math.floor(first / 2 ** 32));
}
