// The order in which units are started and dropped, without any device: what sharding relies on.

import { UnitScheduler } from '@shardweave/nn';
import { expect, it } from 'vitest';

/** Units are letters of one byte each; `log` has starts as letters and drops as '-letter'. */
function scheduled(capBytes: number) {
  const log: string[] = [];
  const present = new Set<string>();
  const scheduler = new UnitScheduler<string, string>(
    {
      bytes: () => 1,
      isPresent: (unit) => present.has(unit),
      start: (unit) => {
        log.push(unit);
        return unit;
      },
      finish: async (unit, ticket) => {
        expect(ticket).toBe(unit);
        present.add(unit);
      },
      drop: (unit) => {
        if (present.delete(unit)) log.push(`-${unit}`);
      },
    },
    { capBytes },
  );
  const forward = async (units: string) => {
    scheduler.beginForward();
    for (const unit of units) {
      await scheduler.enter(unit, 'forward');
      expect(present.has(unit)).toBe(true);
      present.delete(unit);
    }
  };
  const backward = async (units: string) => {
    scheduler.beginBackward();
    for (const unit of units) {
      await scheduler.enter(unit, 'backward');
      present.delete(unit);
    }
  };
  /** The log since the last call. */
  const taken = () => log.splice(0).join('');
  return { scheduler, present, forward, backward, taken };
}

it('starts each unit on demand in the first forward, ahead by the cap afterwards', async () => {
  const { scheduler, forward, taken } = scheduled(2);
  await forward('abcd');
  expect(taken()).toBe('abcd');
  scheduler.beginForward();
  await scheduler.enter('a', 'forward');
  expect(taken()).toBe('abc'); // a on demand, two ahead of use
  expect(scheduler.inFlightBytes).toBe(2);
  await scheduler.enter('b', 'forward');
  expect(taken()).toBe('d');
});

it('starts one unit at a time with a cap below a unit, and still all of them', async () => {
  const { scheduler, forward, taken } = scheduled(0);
  await forward('abc');
  await forward('abc');
  expect(taken()).toBe('abcabc');
  expect(scheduler.inFlightBytes).toBe(0);
});

it('goes backward in the reverse of the forward, without what is present or entered', async () => {
  const { present, forward, backward, taken } = scheduled(Infinity);
  await forward('abcd');
  taken();
  present.add('b');
  await backward('d');
  expect(taken()).toBe('dca');
});

it('stops predicting for the rest of a forward that leaves the order, and settles what is left', async () => {
  const { scheduler, forward, taken } = scheduled(1);
  await forward('abcde');
  taken();
  await forward('acbd');
  expect(taken()).toBe('abcd'); // b was started on a wrong guess and used later; e not, after d again
  await forward('a');
  expect(taken()).toBe('ac');
  await scheduler.settle();
  expect(taken()).toBe('-c');
  expect(scheduler.inFlightBytes).toBe(0);
});

it('does not start ahead in backward what takes no part in it, until the next forward', async () => {
  const { scheduler, forward, backward, taken } = scheduled(Infinity);
  await forward('abc');
  scheduler.skipInBackward('a');
  taken();
  await backward('cb');
  expect(taken()).toBe('cb');
  await forward('abc');
  taken();
  await backward('cb');
  expect(taken()).toBe('cba');
});

it('forgets what is in flight after a failure', async () => {
  const { scheduler, present, forward, taken } = scheduled(Infinity);
  await forward('abc');
  taken();
  scheduler.beginForward();
  await scheduler.enter('a', 'forward');
  scheduler.reset();
  present.clear();
  expect(scheduler.inFlightBytes).toBe(0);
  taken();
  await forward('abc');
  expect(taken()).toBe('abc');
});
