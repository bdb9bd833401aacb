// A ring of frames with one writer and one reader, in shared memory. A frame is 48 bytes of header
// and a body, contiguous, beginning at a multiple of 8; where one would not fit before the end, a
// padding frame fills the rest. Positions count bytes modulo 2 ** 32.
//
// Note [who wakes whom]
// A writer publishes its position and then looks at the reader's doorbell. A reader closes its eyes
// (doorbell.ts) and then looks at the positions once more. All of these accesses are sequentially
// consistent, so one of the two sees the other. A writer that found no room sets IS_FULL; the
// reader clears it once half of the ring is free, and wakes the writer.

import type { RingMemory } from './job-memory.js';

/** The words that the writer writes. */
const TAIL = 0;
const IS_FULL = 1;
const HAS_LEFT = 2;
const IS_WITHDRAWN = 3;
/** The words that the reader writes. */
const HEAD = 16;

const FRAME_HEAD_BYTES = 48;

/** The kinds of frames are the transport's; this one is the ring's own. */
const PADDING = 0;

/** The header of a frame; the meaning of each field depends on its kind. */
export interface FrameHead {
  /** From 1 to 255. */
  kind: number;
  /** The number of a message between these two ranks, or of a description. */
  id: number;
  description: number;
  sequence: number;
  phase: number;
  /** The bytes of the whole message's payload. */
  byteLength: number;
  /** The place of a lent payload. */
  bufferId: number;
  offset: number;
}

export function emptyHead(): FrameHead {
  return {
    kind: PADDING,
    id: 0,
    description: 0,
    sequence: 0,
    phase: 0,
    byteLength: 0,
    bufferId: 0,
    offset: 0,
  };
}

/** The memory of one ring, of which both ends have the same views. */
class RingEnd {
  protected readonly words: Int32Array;
  protected readonly bytes: Uint8Array;
  protected readonly u32: Uint32Array;
  protected readonly f64: Float64Array;

  constructor({ words, bytes }: RingMemory) {
    this.words = words;
    this.bytes = bytes;
    this.u32 = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    this.f64 = new Float64Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 8);
  }

  /**
   * The largest body. It is small enough for a few frames at once, so that both ends work at the
   * same time.
   */
  get maxBodyBytes(): number {
    return this.bytes.byteLength / 4 - FRAME_HEAD_BYTES;
  }
}

export class RingWriter extends RingEnd {
  #tail: number;
  /**
   * The reader's position as it was last seen. It is read anew only where there seems to be no
   * room.
   */
  #head: number;

  constructor(memory: RingMemory) {
    super(memory);
    this.#tail = Atomics.load(this.words, TAIL) >>> 0;
    this.#head = Atomics.load(this.words, HEAD) >>> 0;
  }

  /**
   * Puts a frame into the ring. False where there is no room; the reader then wakes this rank when
   * there is.
   */
  write(head: FrameHead, body: Uint8Array): boolean {
    const size = frameBytes(body.byteLength);
    const capacity = this.bytes.byteLength;
    let at = this.#tail % capacity;
    const padding = at + size > capacity ? capacity - at : 0;
    if (!this.#hasRoom(padding + size)) {
      return false;
    }
    if (padding > 0) {
      this.u32[at / 4] = PADDING;
      this.#tail = (this.#tail + padding) >>> 0;
      at = 0;
    }
    const u32 = this.u32;
    const word = at / 4;
    u32[word] = head.kind;
    u32[word + 1] = body.byteLength;
    u32[word + 2] = head.id;
    u32[word + 3] = head.description;
    u32[word + 4] = head.sequence;
    u32[word + 5] = head.phase;
    u32[word + 6] = head.bufferId;
    this.f64[at / 8 + 4] = head.byteLength;
    this.f64[at / 8 + 5] = head.offset;
    if (body.byteLength > 0) {
      this.bytes.set(body, at + FRAME_HEAD_BYTES);
    }
    this.#tail = (this.#tail + size) >>> 0;
    Atomics.store(this.words, TAIL, this.#tail | 0);
    return true;
  }

  /** Whether a frame found no room, and none has been made since. */
  get isFull(): boolean {
    return Atomics.load(this.words, IS_FULL) === 1;
  }

  /** Tells the reader that nothing more comes; what was written before is read first. */
  leave(): void {
    Atomics.store(this.words, HAS_LEFT, 1);
  }

  /** Tells the reader that what this rank has lent is its own again from now on. */
  withdraw(): void {
    Atomics.store(this.words, IS_WITHDRAWN, 1);
  }

  #hasRoom(size: number): boolean {
    const capacity = this.bytes.byteLength;
    if (size <= capacity - ((this.#tail - this.#head) >>> 0)) {
      return true;
    }
    this.#head = Atomics.load(this.words, HEAD) >>> 0;
    if (size <= capacity - ((this.#tail - this.#head) >>> 0)) {
      return true;
    }
    Atomics.store(this.words, IS_FULL, 1);
    // The position is read once more, because the reader may have made room before it could see
    // that this rank waits for it.
    this.#head = Atomics.load(this.words, HEAD) >>> 0;
    return size <= capacity - ((this.#tail - this.#head) >>> 0);
  }
}

export class RingReader extends RingEnd {
  readonly head: FrameHead = emptyHead();
  /** The last frame's body, which lies in the ring and is valid until `next`. */
  body: Uint8Array;
  #head: number;
  #frameBytes = 0;

  constructor(memory: RingMemory) {
    super(memory);
    this.#head = Atomics.load(this.words, HEAD) >>> 0;
    this.body = this.bytes.subarray(0, 0);
  }

  get isEmpty(): boolean {
    return Atomics.load(this.words, TAIL) >>> 0 === (this.#head + this.#frameBytes) >>> 0;
  }

  /**
   * Whether the writer has finished; it counts only where the ring is found empty after this was
   * true.
   */
  get hasLeft(): boolean {
    return Atomics.load(this.words, HAS_LEFT) === 1;
  }

  /**
   * Whether the writer has taken back what it lent. Where it has not, everything read before is
   * what was lent. The flag is read and written at once, which keeps its place after plain reads.
   */
  get isWithdrawn(): boolean {
    return Atomics.add(this.words, IS_WITHDRAWN, 0) === 1;
  }

  /** Gives the last frame's bytes back and reads the next one into `head` and `body`. */
  next(): boolean {
    if (this.#frameBytes > 0) {
      this.#advance(this.#frameBytes);
      this.#frameBytes = 0;
    }
    if (this.isEmpty) {
      return false;
    }
    let at = this.#head % this.bytes.byteLength;
    if (this.u32[at / 4] === PADDING) {
      this.#advance(this.bytes.byteLength - at);
      at = 0;
    }
    const { u32, f64, head } = this;
    const word = at / 4;
    const bodyBytes = u32[word + 1]!;
    head.kind = u32[word]!;
    head.id = u32[word + 2]!;
    head.description = u32[word + 3]!;
    head.sequence = u32[word + 4]!;
    head.phase = u32[word + 5]!;
    head.bufferId = u32[word + 6]!;
    head.byteLength = f64[at / 8 + 4]!;
    head.offset = f64[at / 8 + 5]!;
    this.body = this.bytes.subarray(at + FRAME_HEAD_BYTES, at + FRAME_HEAD_BYTES + bodyBytes);
    this.#frameBytes = frameBytes(bodyBytes);
    return true;
  }

  /** True once for a writer that waited for room and has some now: the caller wakes it. */
  takeWaiting(): boolean {
    if (Atomics.load(this.words, IS_FULL) === 0) {
      return false;
    }
    const used = (Atomics.load(this.words, TAIL) - this.#head) >>> 0;
    if (used > this.bytes.byteLength / 2) {
      return false;
    }
    return Atomics.exchange(this.words, IS_FULL, 0) === 1;
  }

  #advance(byteLength: number): void {
    this.#head = (this.#head + byteLength) >>> 0;
    Atomics.store(this.words, HEAD, this.#head | 0);
  }
}

function frameBytes(bodyBytes: number): number {
  return FRAME_HEAD_BYTES + Math.ceil(bodyBytes / 8) * 8;
}
