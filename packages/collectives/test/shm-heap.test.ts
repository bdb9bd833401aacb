// These tests cover the heap of a shm job. Its blocks don't overlap whichever rank takes them, are
// zeroed, and come back, and what a rank writes there is visible to all ranks at once.

import { connectShm, createShmJob } from '@shardweave/collectives/shm';
import { describe, expect, it } from 'vitest';
import { createHeapMemory, SharedHeap } from '../src/transports/shm/shared-heap.js';

const MIB = 2 ** 20;

/** Returns a random generator with a seed. */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

describe('SharedHeap', () => {
  it('gives zeroed blocks that no two ranks share, in any order of giving and taking back', () => {
    const memory = createHeapMemory()!;
    const heaps = [new SharedHeap(memory), new SharedHeap(memory), new SharedHeap(memory)];
    const random = randomOf(1);
    const held: { heap: SharedHeap; bytes: Uint8Array; mark: number }[] = [];
    let numWrong = 0;
    for (let step = 1; step <= 600; step++) {
      if (random() < 0.55) {
        const heap = heaps[step % heaps.length]!;
        const bytes = heap.allocate(Math.floor(random() ** 4 * 2 * MIB))!;
        numWrong += bytes.some((byte) => byte !== 0) ? 1 : 0;
        const mark = 1 + (step % 255);
        held.push({ heap, bytes: bytes.fill(mark), mark });
      } else if (held.length > 0) {
        const [{ heap, bytes, mark }] = held.splice(Math.floor(random() * held.length), 1) as [
          (typeof held)[number],
        ];
        numWrong += bytes.some((byte) => byte !== mark) ? 1 : 0;
        expect(heap.release(bytes)).toBe(true);
      }
    }
    expect(numWrong).toBe(0);
  });

  it('uses what came back: a program that gives back all it takes does not grow it', () => {
    const memory = createHeapMemory()!;
    const heap = new SharedHeap(memory);
    const sizes = [3 * MIB, 100, MIB + 1, 5];
    const round = () => {
      for (const bytes of sizes.map((size) => heap.allocate(size)!)) {
        heap.release(bytes);
      }
    };
    round();
    const { byteLength } = memory.buffer;
    for (let i = 0; i < 50; i++) {
      round();
      heap.release(heap.allocate(5 * MIB)!); // Everything is one free block again.
    }
    expect(memory.buffer.byteLength).toBe(byteLength);
  });

  it('knows what is not of it, and gives nothing where the memory ends', () => {
    const heap = new SharedHeap(createHeapMemory()!);
    const bytes = heap.allocate(1000)!;
    expect(bytes.byteLength).toBe(1000);
    expect(heap.holds(bytes.buffer)).toBe(true);
    expect(heap.holds(new SharedArrayBuffer(8))).toBe(false);
    expect(heap.release(new Uint8Array(8))).toBe(false);
    expect(heap.release(bytes.subarray(64))).toBe(false);
    expect(heap.allocate(4 * 1024 * MIB)).toBeUndefined();
    expect(heap.allocate(8)!.byteLength).toBe(8);
  });

  it('sees what another rank has taken since', () => {
    const memory = createHeapMemory()!;
    const [one, other] = [new SharedHeap(memory), new SharedHeap(memory)];
    one.allocate(8);
    const far = other.allocate(20 * MIB)!;
    far[20 * MIB - 1] = 7;
    expect(one.view(far.byteOffset, 20 * MIB)[20 * MIB - 1]).toBe(7);
  });
});

describe('allocate over shm', () => {
  it.each(['with', 'without'])('gives memory that sums are right in, %s a heap', async (how) => {
    const handles = createShmJob(3).map((handle) =>
      how === 'with' ? handle : { ...handle, heap: undefined },
    );
    const groups = await Promise.all(handles.map((handle) => connectShm(handle)));
    const results = await Promise.all(
      groups.map(async (group) => {
        const bytes = group.allocate(4 * 300_001);
        const values = new Float32Array(bytes.buffer, bytes.byteOffset, 300_001);
        values.forEach((_, i) => {
          values[i] = i * (group.rank + 1);
        });
        await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum' });
        const wrong = values.findIndex((value, i) => value !== Math.fround(i * 6));
        group.release(bytes);
        return wrong;
      }),
    );
    expect(results).toEqual([-1, -1, -1]);
    const [bytes] = groups.map((group) => group.allocate(4));
    expect(bytes!.buffer.byteLength > 4).toBe(how === 'with');
    await Promise.all(groups.map((group) => group.close()));
  });
});
