// The header of a message on the wire, little-endian:
//   0 version u8 | 1 operation u8 | 2 reduce op u8 (255: none) | 3 dtype u8 | 4 sequence u32
//   8 byteLength of the call f64 | 16 byteLength of the payload f64 | 24 root i32 | 28 layout u32
//   32 phase u16 | 34 length of the group id u8 | 35 zero u8 | 36 group id, UTF-8
// Payloads up to INLINE_MAX_BYTES follow in the same WebSocket message; larger ones in further
// binary messages of at most CHUNK_BYTES. Text messages are control, in JSON; they may come
// between.

import { CALL_DTYPES, type OperationName } from '../../../call-signature.js';
import { MAX_MESSAGE_BYTES } from '../../../sockets/limits.js';
import type { MessageHeader } from '../../../transport.js';

const VERSION = 2;
const FIXED_BYTES = 36;
const NO_OP = 255;
const MAX_GROUP_BYTES = 255;

/**
 * A payload of up to this many bytes is copied into the message of its header. Above it the copy
 * costs as much as a second message (bench/reports/2026-11-21-ws-thresholds.md). With its header it
 * stays below WHOLE_MESSAGE_BYTES.
 */
export const INLINE_MAX_BYTES = 16 * 1024;

/**
 * 1 MiB: larger chunks save little CPU time and make control messages wait behind more
 * (bench/reports/2026-11-21-ws-thresholds.md).
 */
export const CHUNK_BYTES = MAX_MESSAGE_BYTES / 2;

const OPERATIONS: readonly OperationName[] = [
  'allGather',
  'reduceScatter',
  'allReduce',
  'broadcast',
  'gather',
  'send',
  'recv',
  'barrier',
  'split',
];
const OPS = ['sum', 'mean', 'max', 'min'] as const;

/**
 * The largest payload: a rank's buffer is one typed array, which can't be longer on the oldest
 * supported Node.
 */
const MAX_PAYLOAD_BYTES = 2 ** 32;
/** The most bytes of all ranks' buffers together. */
const MAX_CALL_BYTES = 2 ** 48;

/**
 * Codes the frames of one link. It keeps the bytes of the last group's id, which seldom changes.
 */
export class FrameCodec {
  #sentGroup: string | undefined;
  #sentGroupBytes = new Uint8Array(0);
  #readGroup = '';
  #readGroupBytes = new Uint8Array(0);

  /** Makes one new array of the header and, where it is small, the payload. */
  encode(header: MessageHeader, payload: Uint8Array): Uint8Array {
    const group = this.#bytesOf(header.group);
    const isInline = payload.byteLength <= INLINE_MAX_BYTES;
    const start = FIXED_BYTES + group.length;
    const frame = new Uint8Array(start + (isInline ? payload.byteLength : 0));
    const view = new DataView(frame.buffer);
    const { call } = header;
    frame[0] = VERSION;
    frame[1] = OPERATIONS.indexOf(call.operation);
    frame[2] = call.reduceOp === null ? NO_OP : OPS.indexOf(call.reduceOp);
    frame[3] = CALL_DTYPES.indexOf(call.dtype);
    view.setUint32(4, header.sequence, true);
    view.setFloat64(8, call.byteLength, true);
    view.setFloat64(16, payload.byteLength, true);
    view.setInt32(24, call.root, true);
    view.setUint32(28, call.layout, true);
    view.setUint16(32, header.phase, true);
    frame[34] = group.length;
    frame.set(group, FIXED_BYTES);
    if (isInline) {
      frame.set(payload, start);
    }
    return frame;
  }

  /**
   * Reads the header, and what follows it in the frame.
   * @throws {RangeError} where it is malformed
   */
  decode(frame: Uint8Array): { header: MessageHeader; inline: Uint8Array } {
    const operation = OPERATIONS[frame[1] ?? NO_OP];
    const dtype = CALL_DTYPES[frame[3] ?? NO_OP];
    const reduceOp = frame[2] === NO_OP ? null : OPS[frame[2] ?? NO_OP];
    const start = FIXED_BYTES + (frame[34] ?? 0);
    if (
      frame.length < start ||
      frame[0] !== VERSION ||
      operation === undefined ||
      dtype === undefined ||
      reduceOp === undefined
    ) {
      throw new RangeError(`frame: malformed header of ${frame.length} bytes`);
    }
    const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
    const callBytes = view.getFloat64(8, true);
    const byteLength = view.getFloat64(16, true);
    const root = view.getInt32(24, true);
    if (!isSize(callBytes, MAX_CALL_BYTES) || !isSize(byteLength, MAX_PAYLOAD_BYTES) || root < -1) {
      throw new RangeError(`frame: sizes ${callBytes} and ${byteLength}, root ${root}`);
    }
    const inline = frame.subarray(start);
    const expected = byteLength <= INLINE_MAX_BYTES ? byteLength : 0;
    if (inline.length !== expected) {
      throw new RangeError(
        `frame: expected ${expected} bytes behind a header, got ${inline.length}`,
      );
    }
    const header: MessageHeader = {
      group: this.#groupOf(frame.subarray(FIXED_BYTES, start)),
      sequence: view.getUint32(4, true),
      phase: view.getUint16(32, true),
      call: {
        operation,
        dtype,
        reduceOp,
        byteLength: callBytes,
        root,
        layout: view.getUint32(28, true),
      },
      byteLength,
    };
    return { header, inline };
  }

  #bytesOf(group: string): Uint8Array {
    if (group !== this.#sentGroup) {
      const bytes = new TextEncoder().encode(group);
      if (bytes.length > MAX_GROUP_BYTES) {
        throw new RangeError(`group id: expected at most 255 bytes, got ${bytes.length}.`);
      }
      this.#sentGroup = group;
      this.#sentGroupBytes = bytes;
    }
    return this.#sentGroupBytes;
  }

  #groupOf(bytes: Uint8Array): string {
    const known = this.#readGroupBytes;
    if (bytes.length !== known.length || !bytes.every((byte, i) => byte === known[i])) {
      this.#readGroup = new TextDecoder().decode(bytes);
      this.#readGroupBytes = bytes.slice();
    }
    return this.#readGroup;
  }
}

function isSize(bytes: number, max: number): boolean {
  return Number.isInteger(bytes) && bytes >= 0 && bytes <= max;
}
