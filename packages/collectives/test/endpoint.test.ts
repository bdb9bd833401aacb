// The endpoint is tested over a transport in slow motion, whose chunks come late, wrong or twice.

import {
  type Clock,
  type ControlMessage,
  createWorldGroup,
  Endpoint,
  type GroupOptions,
  type MessageHeader,
  systemClock,
  type Transport,
} from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';
import { Matching } from '../src/endpoint/matching.js';
import { ScratchPool } from '../src/endpoint/scratch-pool.js';
import { Turns } from '../src/endpoint/turns.js';

/** Makes rank 0 of two or more ranks. The test itself decides what the others send. */
function lonelyRank(
  options: GroupOptions = {},
  worldSize = 2,
  onControl: (message: ControlMessage, to: number) => void = () => {},
) {
  const endpoint = new Endpoint(0, worldSize, options);
  const transport: Transport = {
    send: async () => {},
    sendControl: (to, message) => onControl(message, to),
    close: async () => {},
    terminate: () => {},
  };
  endpoint.attach(transport);
  return { endpoint, group: createWorldGroup(endpoint, { timeoutMs: 1000, ...options }) };
}

function allGatherHeader(byteLength: number): MessageHeader {
  const call = {
    operation: 'allGather',
    dtype: 'u8',
    reduceOp: null,
    byteLength,
    root: -1,
    layout: 0,
  } as const;
  return { group: 'world', sequence: 0, phase: 0, call, byteLength };
}

function pointToPointHeader(byteLength: number): MessageHeader {
  const header = allGatherHeader(byteLength);
  return { ...header, call: { ...header.call, operation: 'send' } };
}

/**
 * Returns a clock that advances by a millisecond at each look, so that code which checks the time
 * between slices soon yields.
 */
function slowClock(): Clock {
  let ms = 0;
  return { ...systemClock, now: () => ms++ };
}

/** Returns a clock that moves only by calls of `advance`. */
function manualClock() {
  let ms = 0;
  const timers = new Map<() => void, number>();
  return {
    now: () => ms,
    setTimer: (delayMs: number, callback: () => void) => {
      timers.set(callback, ms + delayMs);
      return () => timers.delete(callback);
    },
    turn: () => Promise.resolve(),
    advance(byMs: number) {
      ms += byMs;
      for (const [callback, dueMs] of [...timers]) {
        if (dueMs <= ms) {
          timers.delete(callback);
          callback();
        }
      }
    },
  };
}

/** Resolves when what the rank has sent counts as sent. */
const haveLeft = () => new Promise((resolve) => setImmediate(resolve));

describe('Endpoint', () => {
  it('joins bytes that came before the call with those that come after', async () => {
    const { endpoint, group } = lonelyRank();
    const sink = endpoint.onMessage(1, allGatherHeader(4));
    sink.write(Uint8Array.of(1, 2));
    const output = new Uint8Array(8);
    const gathered = group.allGather(Uint8Array.of(9, 9, 9, 9), output);
    sink.write(Uint8Array.of(3, 4));
    await gathered;
    expect([...output]).toEqual([9, 9, 9, 9, 1, 2, 3, 4]);
  });

  it('refuses more bytes than the header of a message says', () => {
    const { endpoint } = lonelyRank();
    const sink = endpoint.onMessage(1, allGatherHeader(4));
    sink.write(Uint8Array.of(1, 2));
    const sentence = 'a transport wrote 5 bytes of a message of 4';
    expect(() => sink.write(Uint8Array.of(3, 4, 5))).toThrow(new RangeError(sentence));
  });

  it('names attach where a transport delivers before it', () => {
    const endpoint = new Endpoint(0, 2);
    expect(() => endpoint.onMessage(1, allGatherHeader(4))).toThrow(
      /Endpoint\.attach comes before/,
    );
  });

  it('writes nothing to the caller after a failure', async () => {
    const { endpoint, group } = lonelyRank();
    const output = new Uint8Array(8);
    const gathered = group.allGather(new Uint8Array(4), output);
    const sink = endpoint.onMessage(1, allGatherHeader(4));
    sink.write(Uint8Array.of(1, 2));
    group.abort('enough');
    await expect(gathered).rejects.toThrow(/aborted by rank 0: enough/);
    sink.write(Uint8Array.of(3, 4));
    expect([...output]).toEqual([0, 0, 0, 0, 1, 2, 0, 0]);
  });

  it('takes a message that comes twice, or with another length, as a broken peer', async () => {
    for (const [first, second] of [
      [allGatherHeader(4), allGatherHeader(4)],
      [{ ...allGatherHeader(4), byteLength: 3 }, undefined],
    ]) {
      const { endpoint, group } = lonelyRank();
      const gathered = group.allGather(new Uint8Array(4), new Uint8Array(8));
      endpoint.onMessage(1, first!);
      if (second !== undefined) {
        endpoint.onMessage(1, second);
      }
      await expect(gathered).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
    }
  });

  it('holds nothing of a finished call but its description', async () => {
    const { endpoint, group } = lonelyRank();
    for (let sequence = 0; sequence < 200; sequence++) {
      const gathered = group.allGather(new Uint8Array(4), new Uint8Array(8));
      endpoint.onMessage(1, { ...allGatherHeader(4), sequence }).write(new Uint8Array(4));
      await gathered;
    }
    expect(group.stats()).toMatchObject({ allGathers: 200, bytesSent: 800, bytesReceived: 800 });
    expect(endpoint.failure).toBeUndefined();
    await group.close();
    expect(endpoint.failure).toMatchObject({ kind: 'closed' });
  });

  it('loses a peer that sends what nobody asks for, without end', async () => {
    const { endpoint, group } = lonelyRank({ maxUnclaimedBytes: 1000 });
    for (let sequence = 0; sequence < 100 && endpoint.failure === undefined; sequence++) {
      endpoint.onMessage(1, { ...allGatherHeader(99), sequence });
    }
    expect(endpoint.failure).toMatchObject({ kind: 'peer-lost', origin: 1 });
    await expect(group.barrier()).rejects.toThrow(
      /sent 1089 bytes that no call here has asked for/,
    );
  });

  it('holds 512 MiB of a peer at most: a rank may be as many calls behind, of a MiB each', async () => {
    const { endpoint, group } = lonelyRank();
    for (let sequence = 0; sequence < 512; sequence++) {
      endpoint.onMessage(1, { ...allGatherHeader(2 ** 20), sequence });
    }
    expect(endpoint.failure).toBeUndefined();
    endpoint.onMessage(1, pointToPointHeader(1));
    await expect(group.barrier()).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
  });

  it('no longer counts what has been asked for', async () => {
    const { endpoint, group } = lonelyRank({ maxUnclaimedBytes: 1000 });
    for (let sequence = 0; sequence < 30; sequence++) {
      endpoint.onMessage(1, { ...allGatherHeader(99), sequence }).write(new Uint8Array(99));
      await group.allGather(new Uint8Array(99), new Uint8Array(198));
    }
    expect(endpoint.failure).toBeUndefined();
  });

  it('bounds the number of such messages, too', () => {
    const { endpoint } = lonelyRank();
    for (let sequence = 0; sequence < 70_000 && endpoint.failure === undefined; sequence++) {
      endpoint.onMessage(1, { ...allGatherHeader(0), sequence });
    }
    expect(endpoint.failure).toMatchObject({ kind: 'peer-lost', origin: 1 });
  });

  it('no longer counts the number of messages that have been asked for', () => {
    const services = { scratch: new ScratchPool(), turns: new Turns(systemClock) };
    const matching = new Matching(services, 1000);
    let numTaken = 0;
    for (let sequence = 0; sequence < 70_000; sequence++) {
      const arrival = matching.inMailbox(matching.mailbox('world', sequence), 1, 0);
      numTaken += matching.begin(arrival, 1, allGatherHeader(0), true) === undefined ? 1 : 0;
      void arrival.borrow(0, () => {});
    }
    expect(numTaken).toBe(70_000);
  });

  it('loses a peer that leaves while a call waits for it', async () => {
    const { endpoint, group } = lonelyRank();
    const received = group.recv(new Uint8Array(4), { from: 1 });
    endpoint.onPeerLeft(1);
    await expect(received).rejects.toThrow(/peer 1 lost \(it closed the group\)/);
  });

  it('blames no peer that sent all it had to and left, while its bytes are still copied', async () => {
    const { endpoint, group } = lonelyRank();
    const byteLength = 64 * 2 ** 20;
    endpoint.onMessage(1, pointToPointHeader(byteLength)).write(new Uint8Array(byteLength));
    const received = group.recv(new Uint8Array(byteLength), { from: 1 });
    endpoint.onPeerLeft(1);
    await received;
    expect(endpoint.failure).toBeUndefined();
  });

  it('copies large messages in slices, between which the event loop turns', async () => {
    const { endpoint, group } = lonelyRank({ clock: slowClock() });
    const byteLength = 64 * 2 ** 20;
    endpoint.onMessage(1, pointToPointHeader(byteLength)).write(new Uint8Array(byteLength));
    let turns = 0;
    const count = () => {
      turns++;
      counting = setImmediate(count);
    };
    let counting = setImmediate(count);
    await group.recv(new Uint8Array(byteLength), { from: 1 });
    clearImmediate(counting);
    expect(turns).toBeGreaterThanOrEqual(3);
  });

  it('loses a peer that says what this rank has not done', async () => {
    const { endpoint, group } = lonelyRank({}, 3);
    const pending = group.barrier();
    const failure = { kind: 'aborted', origin: 0, reason: 'no more' } as const;
    endpoint.onControl(1, { type: 'failure', failure });
    await expect(pending).rejects.toMatchObject({
      code: 'PEER_LOST',
      originRank: 1,
      message: expect.stringContaining(
        'it says that rank 0 failed (aborted: no more), which did not',
      ),
    });
  });

  it.each([
    ['aborted', 2, /aborted by rank 2: no more \(told by rank 1\)$/],
    ['aborted', 1, /aborted by rank 1: no more$/],
    ['peer-lost', 2, /peer 2 lost \(no more \(told by rank 1\)\)$/],
    ['peer-lost', 0, /peer 0 lost \(no more \(told by rank 1\)\)$/],
    ['peer-lost', 1, /peer 1 lost \(no more\)$/],
  ] as const)('says who told it that %s is of rank %i', async (kind, origin, message) => {
    const { endpoint, group } = lonelyRank({}, 3);
    const pending = group.barrier();
    endpoint.onControl(1, { type: 'failure', failure: { kind, origin, reason: 'no more' } });
    await expect(pending).rejects.toMatchObject({
      originRank: origin,
      message: expect.stringMatching(message),
    });
  });

  it('tells peers no more of a long reason than they read', async () => {
    const told: ControlMessage[] = [];
    const { group } = lonelyRank({}, 2, (message) => told.push(message));
    group.abort('long '.repeat(100_000));
    await expect(group.barrier()).rejects.toThrow(/(long ){100000}/);
    expect(told).toEqual([
      {
        type: 'failure',
        failure: { kind: 'aborted', origin: 0, reason: 'long '.repeat(200) },
      },
    ]);
  });

  it('gives messages of a channel to those that ask for them, in order, whoever comes first', async () => {
    const { endpoint, group } = lonelyRank();
    const numbers = Array.from({ length: 200 }, (_, i) => i);
    const come = (i: number) =>
      endpoint.onMessage(1, pointToPointHeader(1)).write(Uint8Array.of(i));
    const ask = async () => {
      const buffer = new Uint8Array(1);
      await group.recv(buffer, { from: 1 });
      return buffer[0];
    };
    const asked = numbers.map(ask);
    numbers.forEach(come);
    expect(await Promise.all(asked)).toEqual(numbers);
    numbers.forEach(come);
    expect(await Promise.all(numbers.map(ask))).toEqual(numbers);
  });

  it('takes a call with another option `hosts` for another call', async () => {
    const { endpoint, group } = lonelyRank({ hosts: [0, 0, 1] }, 3);
    const options = { dtype: 'f32', op: 'sum' } as const;
    const reduced = group.allReduce(new Uint8Array(4), new Uint8Array(4), options);
    const call = {
      operation: 'allReduce',
      dtype: 'f32',
      reduceOp: 'sum',
      byteLength: 4,
      root: -1,
      layout: 0,
    } as const;
    endpoint.onMessage(1, { group: 'world', sequence: 0, phase: 0, call, byteLength: 4 });
    await expect(reduced).rejects.toThrow(
      /rank 0 called allReduce sum f32 4 bytes hosts \[0,0,1\] #0, rank 1 called allReduce sum f32 4 bytes #0/,
    );
  });

  it('limits the time without progress, not that of a whole call', async () => {
    const clock = manualClock();
    const { endpoint, group } = lonelyRank({ clock });
    const gathered = group.allGather(new Uint8Array(6), new Uint8Array(12), { timeoutMs: 400 });
    const sink = endpoint.onMessage(1, allGatherHeader(6));
    for (let i = 0; i < 6; i++) {
      clock.advance(399);
      sink.write(Uint8Array.of(i));
    }
    await gathered;
    const stuck = group.allGather(new Uint8Array(6), new Uint8Array(12), { timeoutMs: 400 });
    endpoint.onMessage(1, { ...allGatherHeader(6), sequence: 1 }).write(Uint8Array.of(1));
    await haveLeft();
    clock.advance(400);
    clock.advance(300);
    await expect(stuck).rejects.toThrow(/400 ms without progress, waiting for ranks 1/);
  });
});

describe('a call whose time is over', () => {
  const place = { group: 'world', sequence: 0 } as const;

  it('names ranks that have not made it, and those that do not answer', async () => {
    const clock = manualClock();
    const asked: unknown[] = [];
    const { endpoint, group } = lonelyRank({ clock }, 4, (message, to) =>
      asked.push([to, message]),
    );
    const gathered = group.allGather(new Uint8Array(1), new Uint8Array(4), { timeoutMs: 400 });
    await haveLeft();
    clock.advance(400);
    expect(asked).toEqual([1, 2, 3].map((to) => [to, { type: 'have you called', ...place }]));
    endpoint.onControl(1, { type: 'has called', ...place, hasCalled: true });
    endpoint.onControl(2, { type: 'has called', ...place, hasCalled: false });
    clock.advance(300);
    await expect(gathered).rejects.toMatchObject({
      waitingFor: [2, 3],
      message: expect.stringMatching(/waiting for ranks 2, 3$/),
    });
  });

  it('names those whose messages are missing where all have made it', async () => {
    const clock = manualClock();
    const { endpoint, group } = lonelyRank({ clock }, 3);
    const gathered = group.allGather(new Uint8Array(1), new Uint8Array(3), { timeoutMs: 400 });
    endpoint.onMessage(1, allGatherHeader(1)).write(Uint8Array.of(1));
    await haveLeft();
    clock.advance(400);
    for (const peer of [1, 2]) {
      endpoint.onControl(peer, { type: 'has called', ...place, hasCalled: true });
    }
    await expect(gathered).rejects.toMatchObject({ waitingFor: [2] });
  });

  it('goes on where its bytes come while the others are asked', async () => {
    const clock = manualClock();
    const { endpoint, group } = lonelyRank({ clock });
    const output = new Uint8Array(2);
    const gathered = group.allGather(Uint8Array.of(5), output, { timeoutMs: 400 });
    await haveLeft();
    clock.advance(400);
    endpoint.onMessage(1, allGatherHeader(1)).write(Uint8Array.of(6));
    clock.advance(300);
    await gathered;
    expect([...output]).toEqual([5, 6]);
  });

  it('is known to a rank that is asked, as long as the job lives', async () => {
    const answers: unknown[] = [];
    const { endpoint, group } = lonelyRank({}, 2, (message) => answers.push(message));
    const ask = (sequence: number) =>
      endpoint.onControl(1, { type: 'have you called', group: 'world', sequence });
    ask(0);
    const gathered = group.allGather(new Uint8Array(1), new Uint8Array(2));
    ask(0);
    endpoint.onMessage(1, allGatherHeader(1)).write(Uint8Array.of(6));
    await gathered;
    const next = group.barrier();
    for (const sequence of [0, 1, 2]) {
      ask(sequence);
    }
    expect(answers).toEqual(
      [
        [0, false, undefined],
        [0, true, 'allGather u8 1 bytes #0'],
        [0, true, 'allGather u8 1 bytes #0'],
        [1, true, 'barrier #1'],
        [2, false, undefined],
      ].map(([sequence, hasCalled, call]) => ({
        type: 'has called',
        group: 'world',
        sequence,
        hasCalled,
        call,
      })),
    );
    group.abort('enough');
    await expect(next).rejects.toThrow('enough');
  });
});
