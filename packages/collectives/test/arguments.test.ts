// A caller's mistakes are each refused by a typed error that says what to do, before anything is
// sent, and the job goes on afterwards.

import {
  CollectiveUsageError,
  createMemoryGroup,
  type GroupOptions,
  type ProcessGroup,
  systemClock,
} from '@shardweave/collectives';
import { initProcessGroup } from '@shardweave/collectives/launch';
import { connectShm, createShmJob } from '@shardweave/collectives/shm';
import { connectWs } from '@shardweave/collectives/ws';
import { describe, expect, it } from 'vitest';
import { beginFirst } from './support/first-rank.js';
import { SECRET } from './support/ws-harness.js';

const F32_SUM = { dtype: 'f32', op: 'sum' } as const;
const EIGHT = new Uint8Array(8);

/** Arguments that types would refuse, as plain JavaScript gives them. */
// biome-ignore lint/suspicious/noExplicitAny: the subject of these tests
type Untyped = any;

/** Expects that rank 0's call is refused with `message`, and that both ranks can go on. */
async function expectRefusal(
  act: (group: Untyped) => Promise<unknown>,
  message: RegExp,
): Promise<void> {
  const [first, second] = createMemoryGroup(2, { timeoutMs: 5000 }) as [ProcessGroup, ProcessGroup];
  const error: unknown = await act(first).catch((reason: unknown) => reason);
  expect(error).toBeInstanceOf(CollectiveUsageError);
  expect((error as CollectiveUsageError).code).toBe('USAGE');
  expect((error as CollectiveUsageError).message).toMatch(message);
  await Promise.all([first.barrier(), second.barrier()]);
  await Promise.all([first.close(), second.close()]);
}

describe('options of a call', () => {
  it('refuses an unknown op, and says what avg is called here', async () => {
    const reduce = (op: unknown) => (group: Untyped) =>
      group.allReduce(EIGHT, EIGHT, { dtype: 'f32', op });
    await expectRefusal(reduce('avg'), /op to be sum, mean, max, min, got 'avg'\. It is 'mean'/);
    await expectRefusal(reduce('product'), /op to be sum, mean, max, min, got 'product'\.$/);
    await expectRefusal(
      (group) => group.reduceScatter(EIGHT, new Uint8Array(4), { dtype: 'f32' }),
      /op to be sum, mean, max, min, got undefined/,
    );
  });

  it('refuses an unknown dtype, in every operation', async () => {
    const dtypes = /dtype to be f32, f16, bf16, i32, u32, u8, got 'f64'/;
    const dtype = 'f64';
    const output = new Uint8Array(16);
    await expectRefusal((g) => g.allReduce(EIGHT, EIGHT, { dtype, op: 'sum' }), dtypes);
    await expectRefusal((g) => g.reduceScatter(output, EIGHT, { dtype, op: 'sum' }), dtypes);
    await expectRefusal((g) => g.allGather(EIGHT, output, { dtype }), dtypes);
    await expectRefusal((g) => g.broadcast(EIGHT, { root: 0, dtype }), dtypes);
    await expectRefusal((g) => g.gather(EIGHT, output, { root: 0, dtype }), dtypes);
    await expectRefusal((g) => g.allReduce(EIGHT, EIGHT, { op: 'sum' }), /got undefined/);
  });

  it('refuses calls without the options that they need', async () => {
    await expectRefusal((g) => g.allReduce(EIGHT, EIGHT), /allReduce: .*\{ dtype, op \}/);
    await expectRefusal((g) => g.reduceScatter(EIGHT, EIGHT), /reduceScatter: .*\{ dtype, op \}/);
    await expectRefusal((g) => g.broadcast(EIGHT), /broadcast: .*\{ root \}/);
    await expectRefusal((g) => g.gather(EIGHT, null), /gather: .*\{ root \}/);
    await expectRefusal((g) => g.send(EIGHT), /send: .*\{ to \}, got undefined/);
    await expectRefusal((g) => g.recv(EIGHT, 1), /recv: .*\{ from \}, got 1/);
    await expectRefusal((g) => g.allGather(EIGHT, EIGHT, null), /allGather: .*options.*null/);
  });

  it('refuses invalid time limits', async () => {
    for (const timeoutMs of [Number.NaN, -1, 0, '100', null]) {
      await expectRefusal((g) => g.barrier({ timeoutMs }), /barrier: expected timeoutMs/);
      await expectRefusal((g) => g.send(EIGHT, { to: 1, timeoutMs }), /send: expected timeoutMs/);
    }
  });

  it('waits under time limits beyond those of timers, and under none', async () => {
    for (const timeoutMs of [Number.POSITIVE_INFINITY, 2 ** 31, 1e12]) {
      const delaysMs: number[] = [];
      const setTimer = (ms: number, callback: () => void) => {
        delaysMs.push(ms);
        return systemClock.setTimer(ms, callback);
      };
      const groups = createMemoryGroup(2, { timeoutMs, clock: { ...systemClock, setTimer } });
      const [first, second] = groups as [ProcessGroup, ProcessGroup];
      const early = first.barrier();
      early.catch(() => {}); // The promise is awaited below.
      await new Promise((resolve) => setTimeout(resolve, 30));
      await Promise.all([early, second.barrier()]);
      await Promise.all([first.close(), second.close()]);
      // Node cuts a longer delay to one millisecond, and a timer that is set again and again would
      // spin.
      expect(delaysMs).toEqual([2 ** 31 - 1, 2 ** 31 - 1]);
    }
  });
});

describe('buffers of a call', () => {
  const floats = new Float32Array(2);
  const view = /got Float32Array.*new Uint8Array\(a\.buffer, a\.byteOffset, a\.byteLength\)/;

  it('refuses other typed arrays in every operation, before anything is sent', async () => {
    const output = new Uint8Array(16);
    await expectRefusal((g) => g.allReduce(floats, EIGHT, F32_SUM), view);
    await expectRefusal((g) => g.allReduce(EIGHT, floats, F32_SUM), view);
    await expectRefusal((g) => g.reduceScatter(new Float32Array(4), EIGHT, F32_SUM), view);
    await expectRefusal((g) => g.reduceScatter(output, floats, F32_SUM), view);
    await expectRefusal((g) => g.allGather(floats, output), view);
    await expectRefusal((g) => g.allGather(EIGHT, new Float32Array(4)), view);
    await expectRefusal((g) => g.broadcast(floats, { root: 0 }), view);
    await expectRefusal((g) => g.gather(floats, output, { root: 0 }), view);
    await expectRefusal((g) => g.gather(EIGHT, new Float32Array(4), { root: 0 }), view);
    await expectRefusal((g) => g.send(floats, { to: 1 }), view);
    await expectRefusal((g) => g.recv(floats, { from: 1 }), view);
  });

  it('names the value that is no typed array', async () => {
    const reduce = (input: unknown) => (group: Untyped) => group.allReduce(input, EIGHT, F32_SUM);
    await expectRefusal(reduce([1, 2]), /expected input to be a Uint8Array, got Array/);
    await expectRefusal(reduce(undefined), /got undefined/);
    await expectRefusal(reduce(null), /got null/);
    await expectRefusal(reduce(new ArrayBuffer(8)), /got ArrayBuffer.*new Uint8Array\(a\)/);
    await expectRefusal((g) => g.send('hello', { to: 1 }), /data to be a Uint8Array, got string/);
    // The root would wait for itself, also where there is nothing to gather.
    const nowhere = (g: Untyped) => g.gather(new Uint8Array(0), null, { root: 0 });
    await expectRefusal(nowhere, /expected output to be a Uint8Array, got null/);
  });

  it('refuses a residual that is no Float32Array', async () => {
    await expectRefusal(
      (g) => g.allReduce(EIGHT, EIGHT, { ...F32_SUM, wire: 'bf16', residual: EIGHT }),
      /expected residual to be a Float32Array, got Uint8Array/,
    );
  });

  it("takes Node's Buffer", async () => {
    const groups = createMemoryGroup(2, { timeoutMs: 5000 });
    const outputs = groups.map(() => Buffer.alloc(4));
    await Promise.all(groups.map((group, r) => group.allGather(Buffer.from([r, 7]), outputs[r]!)));
    expect(outputs.map((bytes) => [...bytes])).toEqual([
      [0, 7, 1, 7],
      [0, 7, 1, 7],
    ]);
    await Promise.all(groups.map((group) => group.close()));
  });

  it('registers only shared memory, and allocates only numbers of bytes', async () => {
    await expectRefusal(
      async (group) => group.register(new ArrayBuffer(8)),
      /register: expected a SharedArrayBuffer, got ArrayBuffer/,
    );
    await expectRefusal(async (group) => group.allocate(-1), /allocate: expected .* bytes, got -1/);
  });
});

/** Wrong options of a group of two, and the message that refuses each. */
const WRONG: readonly [options: Untyped, message: RegExp][] = [
  [{ hosts: [0] }, /expected a host for each of 2 ranks, got 1/],
  [{ hosts: [0, 'a'] }, /expected hosts to be numbers, got 'a'/],
  [{ hosts: 'here' }, /expected a host for each of 2 ranks, got string/],
  [{ wire: 'int4' }, /expected wire to be exact, f16, bf16, int8, got 'int4'/],
  [{ timeoutMs: Number.NaN }, /expected timeoutMs to be .*, got NaN/],
  [{ timeoutMs: '5000' }, /expected timeoutMs to be .*, got '5000'/],
  [{ maxUnclaimedBytes: -1 }, /expected maxUnclaimedBytes to be .*, got -1/],
];

/** Wrong options of the transports that are joined asynchronously. */
const WRONG_TO_JOIN: typeof WRONG = [
  ...WRONG,
  [{ joinTimeoutMs: Number.NaN }, /expected joinTimeoutMs to be .*, got NaN/],
  [{ joinTimeoutMs: -5 }, /expected joinTimeoutMs to be .*, got -5/],
];

describe('options of a group', () => {
  it('are checked over memory', () => {
    for (const [options, message] of WRONG) {
      expect(() => createMemoryGroup(2, options)).toThrow(message);
      expect(() => createMemoryGroup(2, options)).toThrow(CollectiveUsageError);
    }
    expect(() => createMemoryGroup(0)).toThrow(
      /createMemoryGroup: expected a positive world size, got 0\./,
    );
    expect(() => createMemoryGroup(1.5)).toThrow(CollectiveUsageError);
  });

  it('are checked over ws before this rank listens or dials', async () => {
    for (const [options, message] of WRONG_TO_JOIN) {
      let hasListened = false;
      const onListen = () => {
        hasListened = true;
      };
      const place = { rank: 0, worldSize: 2, port: 0, secret: SECRET, joinTimeoutMs: 100 };
      const joined = connectWs({ ...place, onListen, ...options });
      const error: unknown = await joined.catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(CollectiveUsageError);
      expect((error as Error).message).toMatch(message);
      expect(hasListened).toBe(false);
    }
  });

  it('are checked over shm before the others are awaited', async () => {
    for (const [options, message] of WRONG_TO_JOIN) {
      const [handle, other] = createShmJob(2);
      const joined = connectShm(handle!, { joinTimeoutMs: 100, ...options } as GroupOptions);
      const error: unknown = await joined.catch((reason: unknown) => reason);
      expect(error).toBeInstanceOf(CollectiveUsageError);
      expect((error as Error).message).toMatch(message);
      for (const port of [...handle!.ports, ...other!.ports]) {
        port?.close();
      }
    }
  });

  it('are checked before a launched rank looks for the others', async () => {
    const env = { RANK: '0', WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: '1' };
    const joined = initProcessGroup({ env, transport: 'ws', hosts: [0] });
    await expect(joined).rejects.toThrow(/rank 0\/2 initProcessGroup: expected a host for each/);
  });

  it('let ranks wait for each other without a limit', async () => {
    for (const joinTimeoutMs of [Number.POSITIVE_INFINITY, 2 ** 31]) {
      const { port, joined } = await beginFirst({ joinTimeoutMs });
      await new Promise((resolve) => setTimeout(resolve, 50));
      const job = { worldSize: 2, secret: SECRET, joinTimeoutMs };
      const overWs = await Promise.all([joined, connectWs({ ...job, rank: 1, port })]);
      await Promise.all(overWs.map((group) => group.close()));

      const [near, far] = createShmJob(2);
      const early = connectShm(near!, { joinTimeoutMs });
      early.catch(() => {}); // The promise is awaited below.
      await new Promise((resolve) => setTimeout(resolve, 50));
      const overShm = await Promise.all([early, connectShm(far!, { joinTimeoutMs })]);
      await Promise.all(overShm.map((group) => group.close()));
    }
  });

  it('name the value that is no rank', async () => {
    const place = { rank: 2, worldSize: 2, port: 1, secret: SECRET };
    await expect(connectWs(place)).rejects.toThrow(/below a positive world size, got rank 2 of 2/);
  });
});

describe('messages of failures', () => {
  it('name the channel of a message and the rank that was late once', async () => {
    const [first, second] = createMemoryGroup(2) as [ProcessGroup, ProcessGroup];
    const options = { from: 1, channel: 3, timeoutMs: 20 };
    const error = await first.recv(EIGHT, options).catch((reason: Error) => reason);
    expect((error as Error).message).toBe(
      'rank 0/2 recv channel 3: recv u8 8 bytes channel 3 timed out after 20 ms without progress, waiting for ranks 1',
    );
    const elsewhere = await second.barrier().catch((reason: Error) => reason);
    expect((elsewhere as Error).message).toBe(
      'rank 1/2 barrier #0: rank 0: recv u8 8 bytes channel 3 timed out after 20 ms without progress, waiting for ranks 1',
    );
  });

  it('keep the failure for calls after close, and say CLOSED only without one', async () => {
    const [first, second] = createMemoryGroup(2) as [ProcessGroup, ProcessGroup];
    first.abort('enough');
    await Promise.all([first.close(), second.close()]);
    await expect(first.barrier()).rejects.toMatchObject({ code: 'ABORTED' });
    await expect(second.barrier()).rejects.toMatchObject({ code: 'ABORTED' });
    const [third, fourth] = createMemoryGroup(2) as [ProcessGroup, ProcessGroup];
    await Promise.all([third.close(), fourth.close()]);
    third.abort('too late');
    await expect(third.barrier()).rejects.toMatchObject({ code: 'CLOSED' });
  });
});
