// Encodes the commands of assembly/attention.ts and splits their work into chunks.

import { byteSize } from '@shardweave/dtypes';
import {
  ATTENTION_FEW,
  ATTENTION_LONG,
  ATTENTION_SHORT,
  OP_ATTENTION,
  OP_ATTENTION_BACKWARD,
  OP_ATTENTION_DELTA,
  OP_ATTENTION_MASK_GRADIENT,
  OP_ATTENTION_QUERY_GRADIENT,
} from '../../../assembly/layout.js';
import type { AttentionOperands } from '../../kernel-calls/attention.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { type CommandWriter, DTYPE_CODES } from './command-writer.js';

/** The operations of one thread per ns, which decide only how far work is split. */
const FLOP_PER_NS = 40;
/**
 * The elements of rows that one thread goes over in a ns, which decide only how far work is split.
 */
const ELEMENTS_PER_NS = 2;
/** The least units of work of backward, as far as the keys of few heads have that many blocks. */
const MIN_UNITS = 4;

/**
 * The least multiplications of one product of a head that a library of the host gets, in blocks
 * whose rate depends on the head's size alone.
 */
const LIBRARY_LEAST = 2 ** 18;

export function attention(call: KernelCalls['attention'], w: CommandWriter): void {
  const { batch, numHeads, numKvHeads, numQueries } = call;
  const hasFewRows =
    numQueries <= ATTENTION_FEW && (numHeads / numKvHeads) * numQueries <= ATTENTION_LONG;
  const units = hasFewRows
    ? batch * numKvHeads
    : batch * numHeads * Math.ceil(numQueries / ATTENTION_LONG);
  operands(call, w.start(OP_ATTENTION, 'attention'));
  w.int(!hasFewRows && isForLibrary(call, w) ? 1 : 0);
  w.commit(Math.min(units, w.chunksFor((4 * productsOf(call)) / FLOP_PER_NS)));
}

export function attentionBackward(call: KernelCalls['attentionBackward'], w: CommandWriter): void {
  const { batch, numHeads, numKvHeads, numQueries, numKeys, dim, q } = call;
  const blocks = Math.ceil(numKeys / ATTENTION_LONG);
  // The number of parts follows from the shape, not from the number of threads: the sums of parts
  // are added up in their order.
  const parts = Math.min(blocks, Math.ceil(MIN_UNITS / (batch * numKvHeads)));
  const wanted = w.chunksFor((10 * productsOf(call)) / FLOP_PER_NS);
  const chunks = Math.min(batch * numKvHeads * parts, wanted);
  // Gradients of queries are added up in f32. Those of 16 bits are summed in scratch, where a chunk
  // has one group of heads at a time. With several parts, each has sums of its own in scratch,
  // except that the first part of f32 gradients sums in place.
  const isF32 = byteSize(q.dtype) === 4;
  const groups = parts > 1 ? batch * numKvHeads * (isF32 ? parts - 1 : parts) : isF32 ? 0 : chunks;
  const rows = (groups * numQueries * numHeads) / numKvHeads;
  const sums = rows === 0 ? 0 : w.temp(rows * 4 * Math.ceil(dim / 8) * 8);
  const isNative = isForLibrary(call, w);
  const command = (op: number, name: string) => {
    operands(call, w.start(op, name));
    w.int(isNative ? 1 : 0);
    w.address(call.dOut).address(call.dq).address(call.dk).address(call.dv).int(parts, sums);
  };
  const elements = batch * numHeads * numQueries * dim;
  command(OP_ATTENTION_DELTA, 'attentionDelta');
  w.commit(w.chunksFor(elements / ELEMENTS_PER_NS));
  command(OP_ATTENTION_BACKWARD, 'attentionBackward');
  w.commit(chunks);
  if (parts > 1) {
    command(OP_ATTENTION_QUERY_GRADIENT, 'attentionQueryGradient');
    w.commit(w.chunksFor((elements * parts) / ELEMENTS_PER_NS));
  }
  w.release();
}

export function attentionMaskGradient(
  call: KernelCalls['attentionMaskGradient'],
  w: CommandWriter,
): void {
  const { batch, numHeads, numQueries, maskStrides } = call;
  const [batches, heads, rows] = [batch, numHeads, Math.ceil(numQueries / ATTENTION_SHORT)].map(
    (count, axis) => (maskStrides[axis] === 0 ? 1 : count),
  );
  operands(call, w.start(OP_ATTENTION_MASK_GRADIENT, 'attentionMaskGradient'));
  w.int(0).address(call.dOut).address(call.dMask);
  const wanted = w.chunksFor((4 * productsOf(call)) / FLOP_PER_NS);
  w.commit(Math.min(batches! * heads! * rows!, wanted));
}

/**
 * Returns whether a library of the host computes the products, which depends on the shape alone; it
 * is loaded then. It gets blocks of queries by keys, see assembly/attention-native.ts.
 */
function isForLibrary({ numQueries, numKeys, dim }: AttentionOperands, w: CommandWriter): boolean {
  const { library } = w;
  if (
    library === undefined ||
    numQueries * numKeys * dim < Math.min(library.least, LIBRARY_LEAST)
  ) {
    return false;
  }
  library.load(false);
  return true;
}

/** Returns about how many multiplications one product over the visible pairs takes. */
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
