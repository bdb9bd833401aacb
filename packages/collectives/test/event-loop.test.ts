// Large operations let the event loop take its turns: code that copies or adds works in slices and
// checks the time between them. The clock of these tests says that each slice took a millisecond.

import {
  type Clock,
  createMemoryGroup,
  type ProcessGroup,
  systemClock,
} from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';
import { copyBytes } from '../src/endpoint/copy-bytes.js';
import { combineInThread } from '../src/endpoint/reduce-hook.js';
import { Turns } from '../src/endpoint/turns.js';

const MIB = 2 ** 20;

function slowClock(): Clock {
  let ms = 0;
  return { ...systemClock, now: () => ms++ };
}

/** Counts the turns of the event loop until `work` is done. */
async function turnsDuring(work: Promise<unknown>): Promise<number> {
  let turns = 0;
  let counting = setImmediate(function count() {
    turns++;
    counting = setImmediate(count);
  });
  await work;
  clearImmediate(counting);
  return turns;
}

type Operation = (group: ProcessGroup) => Promise<void>;

const OPERATIONS: Readonly<Record<string, Operation>> = {
  allGather: (group) => group.allGather(new Uint8Array(24 * MIB), new Uint8Array(48 * MIB)),
  reduceScatter: (group) =>
    group.reduceScatter(new Uint8Array(48 * MIB), new Uint8Array(24 * MIB), {
      dtype: 'f32',
      op: 'sum',
    }),
  allReduce: (group) =>
    group.allReduce(new Uint8Array(48 * MIB), new Uint8Array(48 * MIB), {
      dtype: 'f32',
      op: 'sum',
    }),
  broadcast: (group) => group.broadcast(new Uint8Array(48 * MIB), { root: 1 }),
  gather: (group) => {
    const output = group.rank === 0 ? new Uint8Array(48 * MIB) : null;
    return group.gather(new Uint8Array(24 * MIB), output, { root: 0 });
  },
  'send and recv': (group) =>
    group.rank === 0
      ? group.send(new Uint8Array(48 * MIB), { to: 1 })
      : group.recv(new Uint8Array(48 * MIB), { from: 0 }),
};

describe.each(Object.keys(OPERATIONS))('%s of 48 MiB', (name) => {
  it('gives the event loop a turn every eight slices', async () => {
    const groups = createMemoryGroup(2, { clock: slowClock() });
    const one = new Uint8Array(4); // The first call loads the WebAssembly module.
    await Promise.all(
      groups.map((group) => group.allReduce(one, one, { dtype: 'f32', op: 'sum' })),
    );
    const work = Promise.all(groups.map(OPERATIONS[name]!));
    // The sum has at least 24 slices of a MiB. Each looks at the time once, and there are a few
    // more looks.
    expect(await turnsDuring(work)).toBeGreaterThanOrEqual(3);
    await Promise.all(groups.map((group) => group.close()));
  });
});

// Whole operations also get turns from each other's parts, so each part is tested alone: it must
// yield by itself.
describe.each(['a sum', 'a copy'])('%s of 32 MiB, with nothing beside it', (name) => {
  it('gives the event loop a turn every eight slices', async () => {
    const turns = new Turns(slowClock());
    const [target, ...parts] = [0, 1, 2].map(() => new Uint8Array(32 * MIB));
    let numSlices = 0;
    const reducer = {
      reduce: async () => {
        numSlices++;
      },
    };
    const call = { isOver: false, signal: new AbortController().signal };
    const sum = combineInThread(async () => reducer, turns);
    const work =
      name === 'a copy'
        ? copyBytes(target!, parts[0]!, turns)
        : sum(parts, target!, { dtype: 'f32', op: 'sum' }, call);
    // There are 32 slices or more. Counting begins and ends between two turns.
    expect(await turnsDuring(Promise.resolve(work))).toBeGreaterThanOrEqual(2);
    expect(numSlices).toBe(name === 'a copy' ? 0 : 64);
  });
});
