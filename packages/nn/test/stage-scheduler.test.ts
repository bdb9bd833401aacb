// Sharding relies on the order in which stages are started and dropped. No device takes part in
// these tests.

import { StageScheduler, type UseKind } from '@shardweave/nn/flat';
import { expect, it } from 'vitest';

/**
 * Makes a scheduler of units that are letters, of one byte each where `sizes` says nothing else.
 * `log` records a start as its letter and a drop as '-' and its letter.
 */
function scheduled(capBytes: number, sizes: Readonly<Record<string, number>> = {}) {
  const log: string[] = [];
  const present = new Set<string>();
  const scheduler = new StageScheduler<string, string>(
    {
      bytes: (unit) => sizes[unit] ?? 1,
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
        if (present.delete(unit)) {
          log.push(`-${unit}`);
        }
      },
    },
    { capBytes },
  );
  /** Runs a forward through these units. `kinds` says which of them do not record. */
  const forward = async (
    units: string,
    { isRecording = true, ...kinds }: { isRecording?: boolean } & Record<string, unknown> = {},
  ) => {
    scheduler.beginForward({ isRecording });
    for (const unit of units) {
      await scheduler.enter(unit, 'forward');
      expect(present.has(unit)).toBe(true);
      present.delete(unit);
      scheduler.leave(unit, (kinds[unit] as UseKind | undefined) ?? 'recorded');
    }
  };
  const backward = async (units: string, options: { isOver?: boolean } = {}) => {
    scheduler.beginBackward();
    for (const unit of units) {
      await scheduler.enter(unit, 'backward');
      present.delete(unit);
    }
    if (options.isOver !== false) {
      scheduler.endBackward();
    }
  };
  /** Returns the log since the last call, as one string. */
  const taken = () => log.splice(0).join('');
  return { scheduler, present, forward, backward, taken };
}

it('starts each unit on demand in the first forward, ahead by the cap afterwards', async () => {
  const { scheduler, forward, taken } = scheduled(2);
  await forward('abcd');
  expect(taken()).toBe('abcd');
  scheduler.beginForward();
  await scheduler.enter('a', 'forward');
  expect(taken()).toBe('abc'); // a starts because it is entered, and two more ahead of use.
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
  // b was started on a wrong guess and used later. e is not started after d, since predicting has
  // stopped.
  expect(taken()).toBe('abcd');
  await forward('a');
  expect(taken()).toBe('ac');
  await scheduler.settle();
  expect(taken()).toBe('-c');
  expect(scheduler.inFlightBytes).toBe(0);
});

it('does not start ahead in backward what takes no part in it, until the next forward', async () => {
  const { forward, backward, taken } = scheduled(Infinity);
  await forward('abc', { a: 'unreached' });
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

it('expects of backward the module that returned last, though it was entered before what it holds', async () => {
  const { scheduler, present, taken } = scheduled(1);
  scheduler.beginForward();
  for (const unit of 'rsab') {
    await scheduler.enter(unit, 'forward');
  }
  for (const unit of 'absr') {
    scheduler.leave(unit, 'recorded'); // r contains s, and s contains a and b.
  }
  present.clear();
  taken();
  scheduler.beginBackward();
  await scheduler.enter('r', 'backward');
  expect(taken()).toBe('rs');
});

it('starts a unit ahead again for an earlier use, once it was dropped after the later one', async () => {
  const { forward, backward, taken } = scheduled(1);
  await forward('xyx');
  taken();
  await backward('xyx');
  expect(taken()).toBe('xyx');
  await forward('xyx');
  taken();
  await backward('xy');
  expect(taken()).toBe('xyx'); // The last x is started ahead of its use.
});

it('takes a module with several outputs for one use', async () => {
  const { scheduler, present, forward, taken } = scheduled(1);
  await forward('abcb');
  taken();
  scheduler.beginBackward();
  await scheduler.enter('b', 'backward');
  await scheduler.enter('b', 'backward'); // This is for the module's other output.
  present.delete('b');
  await scheduler.enter('c', 'backward');
  expect(taken()).toBe('bcb');
});

it('keeps what backward needs over forwards that do not record', async () => {
  const { scheduler, forward, backward, taken } = scheduled(1);
  await forward('abc');
  await forward('ab', { isRecording: false });
  await scheduler.settle();
  taken();
  await backward('c');
  expect(taken()).toBe('cb');
});

it('goes backward through several forwards, the last one first, and through an earlier one later', async () => {
  const { scheduler, forward, backward, taken } = scheduled(1);
  await forward('ab');
  await forward('cd');
  taken();
  await backward('dcba');
  expect(taken()).toBe('dcba');
  await backward('d');
  expect(taken()).toBe('dc'); // This backward is the second one before the next forward.
  await scheduler.settle();
  await forward('ab');
  taken();
  await backward('b');
  expect(taken()).toBe('ba');
});

it('knows the order of forwards by the unit that they begin with', async () => {
  const { scheduler, forward, taken } = scheduled(Infinity);
  await forward('abc');
  await forward('xyz');
  taken();
  scheduler.beginForward();
  await scheduler.enter('a', 'forward');
  expect(taken()).toBe('abc');
});

it('starts ahead in backward what ran unrecorded only where the last backward entered it', async () => {
  const { forward, backward, taken } = scheduled(Infinity);
  const kinds = { c: 'unrecorded', t: 'unrecorded' }; // c is a checkpoint and t a frozen teacher.
  await forward('actb', kinds);
  taken();
  await backward('bca');
  expect(taken()).toBe('bac');
  await forward('actb', kinds);
  taken();
  await backward('b');
  expect(taken()).toBe('bca');
});

it('starts what is required in backward though nothing here enters it', async () => {
  const { scheduler, forward, taken } = scheduled(0);
  await forward('abcde', { b: 'unreached' });
  taken();
  scheduler.beginBackward();
  scheduler.requireInBackward((unit) => unit !== 'e');
  await scheduler.enter('c', 'backward');
  expect(taken()).toBe('dc');
  scheduler.endBackward();
  expect(taken()).toBe('ba');
  await scheduler.settle();
  expect(taken()).toBe('-d-b-a');
});

it('starts nothing behind a stage that the cap has no room for, so that all ranks start alike', async () => {
  const { scheduler, present, forward, taken } = scheduled(3, { c: 5 });
  await forward('abcd');
  taken();
  scheduler.beginForward();
  const starts: string[] = [];
  for (const unit of 'abcd') {
    await scheduler.enter(unit, 'forward');
    present.delete(unit);
    starts.push(taken());
  }
  expect(starts).toEqual(['ab', '', 'cd', '']);
  expect(scheduler.inFlightBytes).toBe(0);
});

it('expects what ran without a graph by the last backward that entered anything', async () => {
  const { scheduler, present, forward, backward, taken } = scheduled(9);
  const kinds = { a: 'unrecorded' };
  await forward('ab', kinds);
  await backward('ba');
  await forward('ab', kinds);
  await backward(''); // which no gradient has reached
  await forward('ab', kinds);
  taken();
  scheduler.beginBackward();
  await scheduler.enter('b', 'backward');
  expect(taken()).toBe('ba');
  present.clear();
  await scheduler.settle();
});

it('requires a stage until it was entered, and each stage between two that were', async () => {
  const { scheduler, forward, taken } = scheduled(0);
  await forward('abc');
  taken();
  scheduler.beginBackward();
  expect(['a', 'b', 'c'].map((unit) => scheduler.isRequired(unit))).toEqual([false, false, false]);
  scheduler.requireInBackward(() => true);
  const required = () => ['a', 'b', 'c'].filter((unit) => scheduler.isRequired(unit)).join('');
  expect(required()).toBe('abc');
  await scheduler.enter('c', 'backward');
  expect(required()).toBe('ab');
  await scheduler.enter('a', 'backward');
  expect([required(), taken()]).toEqual(['', 'cba']);
  scheduler.endBackward();
  expect(required()).toBe('');
});
