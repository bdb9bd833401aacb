// These tests make and join a job over shm, and use it wrongly.

import { connectShm, createShmJob } from '@shardweave/collectives/shm';
import { describe, expect, it } from 'vitest';

describe('joining over shm', () => {
  it('names the ranks that did not come, and those that come later learn who has given up', async () => {
    const handles = createShmJob(3);
    const early = connectShm(handles[0]!, { joinTimeoutMs: 200 });
    await expect(early).rejects.toMatchObject({
      code: 'JOIN',
      message: 'rank 0/3 join: no sign of ranks 1, 2 within 200 ms.',
    });
    const late = connectShm(handles[1]!, { joinTimeoutMs: 5000 });
    await expect(late).rejects.toThrow(
      'rank 1/3 join: no sign of ranks 1, 2 within 200 ms (told by rank 0).',
    );
  });

  it('names the rank that ended, also where others had joined before one noticed', async () => {
    const handles = createShmJob(3);
    const [first, , last] = handles.map((handle, rank) =>
      rank === 1 ? undefined : connectShm(handle),
    );
    last!.catch(() => {}); // It is awaited below.
    const [toFirst, toLast] = handles[1]!.ports;
    toFirst!.postMessage({ type: 'hello' });
    const pending = (await first!).barrier();
    toLast!.close();
    await expect(last).rejects.toThrow(/join: the thread of rank 1 ended before all/);
    await expect(pending).rejects.toMatchObject({
      code: 'PEER_LOST',
      originRank: 1,
      message: expect.stringMatching(/the thread of rank 1 ended .*\(told by rank 2\)/),
    });
    toFirst!.close();
  });

  it('refuses impossible sizes', () => {
    expect(() => createShmJob(0)).toThrow(/expected a whole number of ranks, at least 1, got 0/);
    expect(() => createShmJob(1.5)).toThrow(/got 1.5/);
    expect(() => createShmJob(2, { ringBytes: 100_000 })).toThrow(/power of two.*got 100000/);
    expect(() => createShmJob(2, { ringBytes: 8192 })).toThrow(RangeError);
  });

  it('takes a bounded amount of memory, whatever the number of ranks', () => {
    const mib = (worldSize: number) => {
      const [handle] = createShmJob(worldSize);
      const bytes = handle!.memory.byteLength;
      return Math.round(bytes / 2 ** 20);
    };
    expect([1, 2, 4, 8, 24, 32].map(mib)).toEqual([0, 2, 12, 28, 17, 31]);
  });

  it('says why where there is no shared memory', () => {
    const { SharedArrayBuffer: shared } = globalThis;
    Reflect.deleteProperty(globalThis, 'SharedArrayBuffer');
    try {
      expect(() => createShmJob(2)).toThrow(
        /expected SharedArrayBuffer, got none.*Cross-Origin-Opener-Policy/,
      );
    } finally {
      globalThis.SharedArrayBuffer = shared;
    }
  });
});

describe('registered memory', () => {
  it('may be told twice, released twice, and used after its release', async () => {
    const groups = await Promise.all(createShmJob(2).map((handle) => connectShm(handle)));
    const outputs = await Promise.all(
      groups.map(async (group) => {
        const own = new SharedArrayBuffer(100_000);
        group.register(own);
        group.register(own);
        const input = new Uint8Array(own).fill(group.rank + 1);
        const output = group.allocate(200_000);
        expect(output.buffer).toBeInstanceOf(SharedArrayBuffer);
        await group.allGather(input, output);
        for (const memory of [own, own, output, new Uint8Array(5)]) {
          group.release(memory);
        }
        await group.allGather(input, output);
        return output;
      }),
    );
    const expected = new Uint8Array(200_000).fill(1, 0, 100_000).fill(2, 100_000);
    for (const output of outputs) {
      expect(Buffer.compare(output, expected)).toBe(0);
    }
    await Promise.all(groups.map((group) => group.close()));
    expect(groups[0]!.allocate(8).byteLength).toBe(8);
  });

  it('is told to the others once, and that it is released', async () => {
    const [near, far] = createShmJob(2);
    const group = connectShm(near!, { joinTimeoutMs: 500 });
    group.catch(() => {}); // The promise is awaited below.
    const told: { readonly type: string; readonly id?: number }[] = [];
    far!.ports[0]!.addEventListener('message', ({ data }) => told.push(data));
    far!.ports[0]!.start();
    // This is sent in place of the rank that has this handle.
    far!.ports[0]!.postMessage({ type: 'hello' });
    const joined = await group;
    const [first, second] = [new SharedArrayBuffer(64), new SharedArrayBuffer(64)];
    for (const buffer of [first, first, second]) {
      joined.register(buffer);
    }
    for (const buffer of [first, first, second]) {
      joined.release(buffer);
    }
    joined.register(first);
    while (told.at(-1)?.id !== 3) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    const words = told.map(({ type, id }) => (id === undefined ? type : `${type} ${id}`));
    const changes = words.filter((word) => /^(buffer|forget)/.test(word));
    expect(changes).toEqual(['buffer 1', 'buffer 2', 'forget 1', 'forget 2', 'buffer 3']);
    joined.abort('over');
    far!.ports[0]!.close();
  });
});
