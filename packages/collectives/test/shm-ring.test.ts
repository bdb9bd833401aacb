// The ring between two threads is tested by itself, since its edge cases (the end of its bytes, the
// end of 32-bit positions, no room) are rare in a whole job.

import { describe, expect, it, vi } from 'vitest';
import { allocateJobMemory, MIN_RING_BYTES, ringOf } from '../src/transports/shm/job-memory.js';
import { emptyHead, RingReader, RingWriter } from '../src/transports/shm/ring.js';

const HEAD = 16;
const TAIL = 0;

/** Makes both ends of a ring through which `position` bytes have gone already. */
function openRing(position = 0) {
  const memory = ringOf(allocateJobMemory(2, MIN_RING_BYTES), 2, MIN_RING_BYTES, {
    from: 1,
    to: 0,
  });
  memory.words[HEAD] = position;
  memory.words[TAIL] = position;
  return { writer: new RingWriter(memory), reader: new RingReader(memory) };
}

function bodyOf(i: number, byteLength: number): Uint8Array {
  return Uint8Array.from({ length: byteLength }, (_, at) => (i * 31 + at) & 255);
}

/**
 * Runs `outer`, and all of `inner` just before the `step`-th access of `outer` to shared words (0:
 * before the first). Whatever two threads do at the same time equals one of these orders. Returns
 * false where `outer` has fewer accesses.
 */
function interleave(outer: () => void, inner: () => void, step: number): boolean {
  let numAccesses = 0;
  let isInside = false;
  const before = () => {
    if (!isInside && numAccesses++ === step) {
      isInside = true;
      inner();
      isInside = false;
    }
  };
  const spies = (['load', 'store', 'exchange'] as const).map((name) => {
    const access = Atomics[name] as (...words: unknown[]) => number;
    return vi.spyOn(Atomics, name).mockImplementation(((...words: unknown[]) => {
      before();
      return access(...words);
    }) as never);
  });
  outer();
  for (const spy of spies) {
    spy.mockRestore();
  }
  return numAccesses > step;
}

describe('a ring', () => {
  it.each([0, 2 ** 32 - 80_000])('gives frames as they were, from position %i on', (position) => {
    const { writer, reader } = openRing(position);
    const head = emptyHead();
    let numRead = 0;
    const readAll = () => {
      while (reader.next()) {
        expect(reader.head).toEqual({
          kind: 1 + (numRead % 255),
          id: 2 ** 32 - 1 - numRead,
          description: numRead,
          sequence: 7 * numRead,
          phase: numRead % 65_536,
          byteLength: 2 ** 40 + numRead,
          bufferId: 3 * numRead,
          offset: 2 ** 41 + numRead,
        });
        // Bodies are compared as buffers, since toEqual takes milliseconds for each.
        expect(Buffer.compare(reader.body, bodyOf(numRead, (numRead * 389) % 4001))).toBe(0);
        numRead++;
      }
    };
    for (let i = 0; i < 400; i++) {
      head.kind = 1 + (i % 255);
      head.id = 2 ** 32 - 1 - i;
      head.description = i;
      head.sequence = 7 * i;
      head.phase = i % 65_536;
      head.byteLength = 2 ** 40 + i;
      head.bufferId = 3 * i;
      head.offset = 2 ** 41 + i;
      while (!writer.write(head, bodyOf(i, (i * 389) % 4001))) {
        expect(writer.isFull).toBe(true);
        readAll();
        expect(reader.takeWaiting()).toBe(true);
        expect(writer.isFull).toBe(false);
      }
    }
    readAll();
    expect(numRead).toBe(400);
  });

  it('wakes a writer that waits when half of it is free, and once', () => {
    const { writer, reader } = openRing();
    const head = { ...emptyHead(), kind: 1 };
    const body = new Uint8Array(MIN_RING_BYTES / 8 - 48); // Eight frames fill the ring.
    let numWritten = 0;
    while (writer.write(head, body)) {
      numWritten++;
    }
    expect(numWritten).toBe(8);
    const isWoken: boolean[] = [];
    while (reader.next()) {
      isWoken.push(reader.takeWaiting()); // The frame that `next` returned is still in use.
    }
    expect(isWoken).toEqual([false, false, false, false, true, false, false, false]);
  });

  it.each(['reader', 'writer'])(
    'loses no wake-up, at whatever step of the %s the other one comes',
    (outerEnd) => {
      const orders = { wroteAtOnce: 0, isWoken: 0 };
      for (let step = 0; ; step++) {
        const { writer, reader } = openRing();
        const head = { ...emptyHead(), kind: 1 };
        const body = new Uint8Array(MIN_RING_BYTES / 8 - 48);
        for (let i = 0; i < 8; i++) {
          expect(writer.write(head, body)).toBe(true); // Eight frames fill the ring.
        }
        let isWritten = false;
        let isWoken = false;
        const write = () => {
          isWritten = writer.write(head, body);
        };
        const read = () => {
          while (reader.next()) {
            // This reads all of it.
          }
          isWoken = reader.takeWaiting();
        };
        const [outer, inner] = outerEnd === 'reader' ? [read, write] : [write, read];
        if (!interleave(outer, inner, step)) {
          expect(step).toBeGreaterThan(2);
          break;
        }
        // The writer sleeps at a position without room, and the reader at one without another
        // frame.
        expect({ step, wakesOrWrites: isWritten || isWoken }).toEqual({
          step,
          wakesOrWrites: true,
        });
        orders.wroteAtOnce += isWritten ? 1 : 0;
        orders.isWoken += isWoken ? 1 : 0;
      }
      expect(Math.min(orders.wroteAtOnce, orders.isWoken)).toBeGreaterThan(0);
    },
  );

  it('is empty before the writer is said to have left', () => {
    const { writer, reader } = openRing();
    writer.write({ ...emptyHead(), kind: 9 }, new Uint8Array(3));
    expect(reader.hasLeft).toBe(false);
    writer.leave();
    expect([reader.hasLeft, reader.isEmpty]).toEqual([true, false]);
    expect(reader.next()).toBe(true);
    expect([reader.head.kind, reader.isEmpty]).toEqual([9, true]);
  });
});
