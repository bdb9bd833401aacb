// All-gather, reduce-scatter and all-reduce of f32 with fewer bytes on the wire: parts are encoded
// by their sender, decoded by their receiver, and added up in f32 in rank order, as without
// compression. All ranks read the decoded bits, the sender included, so results are equal
// everywhere.

import {
  encodedByteLength,
  type ReduceOp,
  type SliceOptions,
  type WireCodec,
  type WireFormat,
} from '@shardweave/dtypes';
import type { Call } from '../endpoint/call.js';
import { receiveHalves, sendHalves } from './message-halves.js';
import { balancedParts, type PartLayout, partBytes, partOf } from './part-layout.js';

/** The encoding of a call's values. */
export interface Compression {
  readonly codec: WireCodec;
  readonly format: WireFormat;
  /**
   * What earlier calls have lost, in f32, as long as the input. It is added to the input, and then
   * holds what this call loses.
   */
  readonly residual: Uint8Array | undefined;
}

const BYTES = Float32Array.BYTES_PER_ELEMENT;

/**
 * The number of elements that are decoded at a time, so that scratch memory stays small; a multiple
 * of the int8 block.
 */
const CHUNK_ELEMENTS = 256 * 1024;

/** The first phase of the second exchange; a message and its rest take two phases. */
const SECOND_PHASE = 2;

/**
 * Works as `allGather` does. `own` lies outside `output`, whose own part gets the decoded values,
 * too.
 */
export async function allGatherCompressed(
  call: Call,
  own: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  compression: Compression,
): Promise<void> {
  const { codec, format, residual } = compression;
  const coded = takeCoded(call, layout, format);
  await codec.encode(own, coded[call.rank]!, { format, residual, ...slicesOf(call) });
  await exchangeCoded(call, coded, 0);
  await decodeAll(call, coded, output, layout, compression);
  giveAll(call, coded);
}

/** Works as `reduceScatter` does. The owner's own share is exact. */
export async function reduceScatterCompressed(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  op: ReduceOp,
  { codec, format, residual }: Compression,
): Promise<void> {
  const slices = slicesOf(call);
  const outgoing = takeCoded(call, layout, format);
  const arrived = call.peers.map((peer) => {
    const { byteLength } = outgoing[call.rank]!;
    const target = call.scratch.take(byteLength);
    return { peer, target, ...receiveHalves(call, peer, target, 0) };
  });
  const sent: Promise<unknown>[] = [];
  for (const { peer, head } of arrived) {
    const error = residual && partOf(residual, layout, peer);
    await codec.encode(partOf(input, layout, peer), outgoing[peer]!, {
      format,
      residual: error,
      ...slices,
    });
    sent.push(sendHalves(call, peer, outgoing[peer]!, 0, head));
  }
  const incoming: Uint8Array[] = [];
  for (const { peer, target, all } of arrived) {
    await all;
    incoming[peer] = target;
  }
  const own = partOf(input, layout, call.rank);
  const ownResidual = residual && partOf(residual, layout, call.rank);
  for (let at = 0; at < own.byteLength / BYTES; at += CHUNK_ELEMENTS) {
    const count = Math.min(CHUNK_ELEMENTS, own.byteLength / BYTES - at);
    const bytes = (view: Uint8Array) => view.subarray(at * BYTES, (at + count) * BYTES);
    const parts: Uint8Array[] = [];
    for (const peer of call.peers) {
      const part = call.scratch.take(count * BYTES);
      const [start, end] = [encodedByteLength(format, at), encodedByteLength(format, at + count)];
      await codec.decode(incoming[peer]!.subarray(start, end), part, { format, ...slices });
      parts[peer] = part;
    }
    parts[call.rank] = call.scratch.take(count * BYTES);
    parts[call.rank]!.set(bytes(own));
    if (ownResidual !== undefined) {
      await codec.moveInto(parts[call.rank]!, bytes(ownResidual), slices);
    }
    await call.reduce(parts, bytes(output), { dtype: 'f32', op });
    giveAll(call, parts);
  }
  await Promise.all(sent);
  giveAll(call, outgoing);
  giveAll(
    call,
    arrived.map(({ target }) => target),
  );
}

/**
 * Works as `allReduce` does. The error of the owner's result goes into the owner's residual, and so
 * into its share of the next call.
 */
export async function allReduceCompressed(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  op: ReduceOp,
  compression: Compression,
): Promise<void> {
  const { codec, format, residual } = compression;
  const slices = slicesOf(call);
  const layout = balancedParts(call.worldSize, input.byteLength, BYTES);
  const own = partOf(output, layout, call.rank);
  await reduceScatterCompressed(call, input, own, layout, op, compression);
  const coded = takeCoded(call, layout, format);
  const lost = residual && partOf(residual, layout, call.rank);
  await codec.encode(own, coded[call.rank]!, { format, residual: lost, ...slices });
  if (lost !== undefined && op === 'mean') {
    await codec.scale(lost, call.worldSize, slices);
  }
  await exchangeCoded(call, coded, SECOND_PHASE);
  await decodeAll(call, coded, output, layout, compression);
  giveAll(call, coded);
}

/** Lets the codec share the event loop's turns with everything else of this rank. */
function slicesOf({ signal, turns }: Call): SliceOptions {
  return { signal, pause: () => (turns.next() === undefined ? undefined : turns.wait()) };
}

/** Takes a buffer for each rank's encoded part. */
function takeCoded(call: Call, layout: PartLayout, format: WireFormat): Uint8Array[] {
  return Array.from({ length: call.worldSize }, (_, rank) =>
    call.scratch.take(encodedByteLength(format, partBytes(layout, rank) / BYTES)),
  );
}

/** Sends this rank's buffer to all others, and receives theirs into their places. */
async function exchangeCoded(
  call: Call,
  coded: readonly Uint8Array[],
  phase: number,
): Promise<void> {
  const moved = call.peers.flatMap((peer) => {
    const { head, all } = receiveHalves(call, peer, coded[peer]!, phase);
    return [all, sendHalves(call, peer, coded[call.rank]!, phase, head)];
  });
  await Promise.all(moved);
}

async function decodeAll(
  call: Call,
  coded: readonly Uint8Array[],
  output: Uint8Array,
  layout: PartLayout,
  { codec, format }: Compression,
): Promise<void> {
  const slices = slicesOf(call);
  for (const [rank, part] of coded.entries()) {
    await codec.decode(part, partOf(output, layout, rank), { format, ...slices });
  }
}

function giveAll(call: Call, buffers: readonly Uint8Array[]): void {
  for (const buffer of buffers) {
    call.scratch.give(buffer);
  }
}
