// Checks a call's arguments: what is wrong whatever the other ranks call is refused before anything
// is sent, and the job goes on.

import { byteSize, type ReduceOp, type ReduceOptions, type WireFormat } from '@shardweave/dtypes';
import { countedParts, evenParts, type PartLayout, partBytes } from '../algorithms/part-layout.js';
import type { TreeCall } from '../algorithms/tree-sums.js';
import { WIRE_DTYPES, type WireDType } from '../call-signature.js';
import type { CollectiveUsageError } from '../errors.js';
import { hashNumbers } from '../hash-numbers.js';
import type { CompressionOptions, MoveOptions, ReduceCallOptions } from './process-group.js';
import { complaintOfTree, treeCall } from './tree-call.js';
import { complaintOfTimeLimit, complaintOfWire, kindOf, shown } from './value-checks.js';

const REDUCE_OPS: readonly ReduceOp[] = ['sum', 'mean', 'max', 'min'];

/** How a buffer is divided among ranks, with the values by which ranks compare it. */
export interface Division {
  readonly layout: PartLayout;
  /** The bytes for the call's signature: of one part, or of all parts where they are uneven. */
  readonly byteLength: number;
  /** The hash for the call's signature: of uneven counts, or 0. */
  readonly layoutHash: number;
}

/** How a call is compressed. */
export interface CallCompression {
  readonly format: WireFormat;
  readonly residual: Uint8Array | undefined;
}

export class CallArguments {
  readonly #rank: number;
  readonly #worldSize: number;
  readonly #error: (call: string, message: string) => CollectiveUsageError;

  constructor(
    rank: number,
    worldSize: number,
    error: (call: string, message: string) => CollectiveUsageError,
  ) {
    this.#rank = rank;
    this.#worldSize = worldSize;
    this.#error = error;
  }

  /** Checks the options that every call takes; `needs` names those that this call requires. */
  options(call: string, options: MoveOptions, needs?: string): void {
    if (kindOf(options) !== 'Object') {
      const what = needs === undefined ? 'options' : `options, at least ${needs}`;
      throw this.#error(call, `expected an object of ${what}, got ${shown(options)}.`);
    }
    const { timeoutMs, dtype } = options;
    const complaint =
      timeoutMs === undefined ? undefined : complaintOfTimeLimit('timeoutMs', timeoutMs);
    if (complaint !== undefined) {
      throw this.#error(call, complaint);
    }
    if (dtype !== undefined) {
      this.#dtype(call, dtype);
    }
  }

  #dtype(call: string, dtype: WireDType): void {
    if (!WIRE_DTYPES.includes(dtype)) {
      const dtypes = WIRE_DTYPES.join(', ');
      throw this.#error(call, `expected dtype to be ${dtypes}, got ${shown(dtype)}.`);
    }
  }

  /**
   * Refuses all arrays but Uint8Array, because the lengths and offsets of others mean something
   * else.
   */
  buffer(call: string, name: string, bytes: Uint8Array): void {
    const kind = ArrayBuffer.isView(bytes) ? bytes[Symbol.toStringTag] : kindOf(bytes);
    if (kind !== 'Uint8Array') {
      const isBuffer = kind === 'ArrayBuffer' || kind === 'SharedArrayBuffer';
      const how = isBuffer
        ? 'Of a buffer a: new Uint8Array(a)'
        : 'Of a typed array a: new Uint8Array(a.buffer, a.byteOffset, a.byteLength)';
      throw this.#error(call, `expected ${name} to be a Uint8Array, got ${kind}. ${how}.`);
    }
  }

  /**
   * Divides `whole`, which has all ranks' parts; `part` is this rank's part. With a tree both have
   * as many of them, one after the other, as there are nodes.
   */
  division(
    call: string,
    part: Uint8Array,
    whole: { readonly name: string; readonly bytes: Uint8Array },
    { dtype = 'u8', counts }: { dtype?: WireDType; counts?: readonly number[] },
    tree?: TreeCall,
  ): Division {
    const numParts = tree?.sums.length ?? 1;
    const numWholes = tree?.nodes[this.#rank]?.length ?? 1;
    if (counts === undefined) {
      const byteLength = part.byteLength / numParts;
      this.bytes(call, whole.name, whole.bytes, byteLength * this.#worldSize * numWholes);
      return { layout: evenParts(this.#worldSize, byteLength), byteLength, layoutHash: 0 };
    }
    const isCount = (count: number) => Number.isSafeInteger(count) && count >= 0;
    if (counts.length !== this.#worldSize || !counts.every(isCount)) {
      throw this.#error(
        call,
        `expected ${this.#worldSize} counts of elements, got [${counts.join(', ')}].`,
      );
    }
    const layout = countedParts(counts, byteSize(dtype));
    const own = partBytes(layout, this.#rank) * numParts;
    if (part.byteLength !== own) {
      const count = counts[this.#rank];
      throw this.#error(
        call,
        `expected ${own} bytes for ${count} ${dtype} of rank ${this.#rank}, got ${part.byteLength}.`,
      );
    }
    const byteLength = layout.offsets.at(-1)!;
    this.bytes(call, whole.name, whole.bytes, byteLength * numWholes);
    return { layout, byteLength, layoutHash: hashNumbers(counts) };
  }

  /** The tree of a sum; undefined where parts are added in rank order. */
  tree(call: string, { tree, dtype, op, wire }: ReduceCallOptions): TreeCall | undefined {
    if (tree === undefined) {
      return undefined;
    }
    const complaint = complaintOfTree(tree, this.#worldSize);
    if (complaint !== undefined) {
      throw this.#error(call, complaint);
    }
    if (dtype !== 'f32' || op !== 'sum' || (wire ?? 'exact') !== 'exact') {
      const got = [op, dtype, ...(wire === undefined ? [] : [`wire ${wire}`])].join(' ');
      throw this.#error(call, `expected an exact sum of f32 with a tree, got ${got}.`);
    }
    const made = treeCall(tree);
    const sum = made.sums[0]!.node;
    if (call === 'allReduce' && sum.end - sum.first < tree.leaves) {
      const got = `${made.sums.at(-1)!.node.end - sum.first}`;
      throw this.#error(
        call,
        `expected all ${tree.leaves} leaves of the tree, got ${got}. Sums of some leaves are for reduceScatter.`,
      );
    }
    return made;
  }

  /**
   * Refuses a `part` that overlaps other ranks' parts of `whole`, which are in use. It may lie at
   * its own place there.
   */
  noOverlap(call: string, part: Uint8Array, whole: Uint8Array, place: number): void {
    if (part.buffer !== whole.buffer || part.byteLength === 0 || whole.byteLength === 0) {
      return;
    }
    const start = part.byteOffset - whole.byteOffset;
    const isApart = start >= whole.byteLength || start + part.byteLength <= 0;
    if (!isApart && start !== place) {
      throw this.#error(
        call,
        `input and output overlap, expected an overlap only at byte ${place}, got byte ${start}.`,
      );
    }
  }

  reduceOptions(call: string, byteLength: number, options: ReduceCallOptions): ReduceOptions {
    const { dtype, op } = options;
    this.#dtype(call, dtype);
    if (!REDUCE_OPS.includes(op)) {
      const hint = /^(avg|average)$/i.test(String(op)) ? " It is 'mean' here." : '';
      const ops = REDUCE_OPS.join(', ');
      throw this.#error(call, `expected op to be ${ops}, got ${shown(op)}.${hint}`);
    }
    const size = byteSize(dtype);
    if (byteLength % size !== 0) {
      throw this.#error(call, `expected whole ${dtype} elements, got ${byteLength} bytes.`);
    }
    return { dtype, op };
  }

  /**
   * The compression of a call; undefined where the call is exact. A call that itself asks for an
   * impossible compression is refused; a default of the group is left out where it is impossible.
   */
  compression(
    call: string,
    input: Uint8Array,
    options: CompressionOptions & { readonly dtype?: WireDType; readonly op?: ReduceOp },
    ofGroup: WireFormat | 'exact',
  ): CallCompression | undefined {
    const { wire = ofGroup, dtype = 'u8', op = 'sum', residual } = options;
    const complaint = complaintOfWire(wire);
    if (complaint !== undefined) {
      throw this.#error(call, complaint);
    }
    if (residual !== undefined && kindOf(residual) !== 'Float32Array') {
      const kind = kindOf(residual);
      throw this.#error(call, `expected residual to be a Float32Array, got ${kind}.`);
    }
    const fits = dtype === 'f32' && (op === 'sum' || op === 'mean');
    if (wire === 'exact' || (!fits && options.wire === undefined)) {
      if (residual !== undefined) {
        throw this.#error(call, 'a residual is for compressed calls. Name a wire format.');
      }
      return undefined;
    }
    if (!fits) {
      const what = dtype === 'f32' ? op : dtype;
      throw this.#error(call, `wire ${wire} is for f32, sum or mean, got ${what}.`);
    }
    if (residual !== undefined && residual.byteLength !== input.byteLength) {
      throw this.#error(
        call,
        `expected a residual of ${input.byteLength / 4} f32, as the input, got ${residual.length}.`,
      );
    }
    return {
      format: wire,
      residual:
        residual && new Uint8Array(residual.buffer, residual.byteOffset, residual.byteLength),
    };
  }

  /**
   * Refuses an input that lies in the output: all ranks read rounded values there, so the input
   * would be rounded.
   */
  notInPlace(call: string, input: Uint8Array, output: Uint8Array): void {
    const start = input.byteOffset - output.byteOffset;
    const isApart = start >= output.byteLength || start + input.byteLength <= 0;
    if (input.buffer === output.buffer && !isApart) {
      throw this.#error(
        call,
        'input lies in output, which a compressed call would round. Copy it.',
      );
    }
  }

  /** Refuses a sum in the order of a tree that lies in what is added. */
  noTreeOverlap(call: string, input: Uint8Array, output: Uint8Array): void {
    const start = output.byteOffset - input.byteOffset;
    const isApart = start >= input.byteLength || start + output.byteLength <= 0;
    if (input.buffer === output.buffer && !isApart) {
      throw this.#error(call, 'input and output overlap, expected none with a tree.');
    }
  }

  bytes(call: string, name: string, bytes: Uint8Array, byteLength: number): void {
    if (bytes.byteLength !== byteLength) {
      throw this.#error(
        call,
        `expected an ${name} of ${byteLength} bytes for ${this.#worldSize} ranks, ` +
          `got ${bytes.byteLength}.`,
      );
    }
  }

  byteCount(call: string, byteLength: number): void {
    if (!Number.isSafeInteger(byteLength) || byteLength < 0) {
      throw this.#error(call, `expected a number of bytes, got ${shown(byteLength)}.`);
    }
  }

  sharedBuffer(call: string, buffer: SharedArrayBuffer): void {
    const kind = kindOf(buffer);
    if (kind !== 'SharedArrayBuffer') {
      throw this.#error(call, `expected a SharedArrayBuffer, got ${kind}.`);
    }
  }

  rank(call: string, name: string, rank: number): void {
    if (!Number.isInteger(rank) || rank < 0 || rank >= this.#worldSize) {
      throw this.#error(call, `expected a ${name} below ${this.#worldSize}, got ${rank}.`);
    }
  }

  /** Checks the peer of a send or recv, and returns the channel. */
  pointToPoint(call: string, peer: number, channel = 0): number {
    this.rank(call, 'peer', peer);
    if (peer === this.#rank) {
      throw this.#error(call, `expected another rank, got its own, ${peer}.`);
    }
    if (!Number.isInteger(channel) || channel < 0 || channel > 0xffffffff) {
      throw this.#error(call, `expected an unsigned 32-bit channel, got ${channel}.`);
    }
    return channel;
  }
}
