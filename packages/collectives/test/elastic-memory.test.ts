// An elastic job over memory, on a virtual clock: its members are killed, leave and come, and its
// coordinator is started again.

import { describe, expect, it } from 'vitest';
import type { Clock } from '../src/clock.js';
import { EpochOverError } from '../src/errors.js';
import type { CoordinatorChange, Departure } from '../src/membership/coordinator-options.js';
import type { Epoch } from '../src/membership/member.js';
import { MembershipError } from '../src/membership/membership-error.js';
import { VirtualTime } from '../src/testing/simulator/virtual-time.js';
import { conformanceCases } from '../src/testing.js';
import { MemoryElasticJob, type MemoryElasticOptions } from '../src/transports/memory-elastic.js';

/** More than any of these jobs has. */
const MAX_EVENTS = 10_000;

/** A job whose clock moves when the test lets it. */
function elasticJob(options: Partial<MemoryElasticOptions> = {}) {
  const time = new VirtualTime();
  const clock: Clock = {
    now: () => time.nowMs,
    setTimer: (ms, callback) => time.after(ms, callback),
    turn: () => new Promise((resolve) => setImmediate(resolve)),
  };
  const job = new MemoryElasticJob({ min: 1, max: 8, clock, ...options });
  /** Lets the time run until all that was promised is settled. */
  const settle = async <T>(promises: readonly Promise<T>[]) => {
    const settled = Promise.allSettled(promises);
    await time.run(MAX_EVENTS);
    return settled;
  };
  const all = async <T>(promises: readonly Promise<T>[]): Promise<readonly T[]> => {
    await settle(promises);
    return Promise.all(promises);
  };
  /** Lets so many come, who stop at step 0. */
  const come = async (count: number) => {
    const members = await all(Array.from({ length: count }, () => job.join()));
    const epochs = await all(members.map((member) => member.reform({ step: 0 })));
    return { members, epochs };
  };
  return { job, time, settle, all, come };
}

/** The sum of the ranks' numbers plus one, which shows that the group of an epoch works. */
async function sumOver(epochs: readonly Epoch[]): Promise<readonly number[]> {
  return Promise.all(
    epochs.map(async ({ group }) => {
      const sum = new Float32Array(1);
      const own = Float32Array.of(group.rank + 1);
      const bytes = new Uint8Array(sum.buffer);
      await group.allReduce(new Uint8Array(own.buffer), bytes, { dtype: 'f32', op: 'sum' });
      return sum[0]!;
    }),
  );
}

const idsOf = ({ members }: Epoch) => members.map(({ id }) => id);

describe('an elastic job', () => {
  it('begins with all who come, who have one group', async () => {
    const { come } = elasticJob();
    const { members, epochs } = await come(3);
    expect(members.map(({ id }) => id)).toEqual([0, 1, 2]);
    expect(epochs.map(({ group }) => [group.rank, group.worldSize, group.id])).toEqual([
      [0, 3, 'world@1'],
      [1, 3, 'world@1'],
      [2, 3, 'world@1'],
    ]);
    expect(epochs[0]).toMatchObject({ number: 1, joined: [0, 1, 2], left: [], source: 0, step: 0 });
    expect(await sumOver(epochs)).toEqual([6, 6, 6]);
  });

  it('goes on without who is killed, from the highest step, with the notes of all', async () => {
    const { job, come, all } = elasticJob();
    const { members, epochs } = await come(4);
    const calls = [0, 1, 2].map((rank) => epochs[rank]!.group.barrier());
    const settled = Promise.allSettled(calls);
    job.kill(3);
    for (const outcome of await settled) {
      const error = (outcome as PromiseRejectedResult).reason;
      expect(error).toBeInstanceOf(EpochOverError);
      expect(error).toMatchObject({ code: 'EPOCH', lost: [3] });
    }
    const steps = [4, 5, 5];
    const next = await all(
      steps.map((step, rank) => members[rank]!.reform({ step, note: `note of ${rank}` })),
    );
    expect(next[1]).toMatchObject({ number: 2, joined: [], left: [3], source: 1, step: 5 });
    expect(next[2]!.members).toEqual(
      steps.map((step, id) => ({ id, step, note: `note of ${id}` })),
    );
    expect(await sumOver(next)).toEqual([6, 6, 6]);
  });

  it('takes newcomers in together, at an edge of those at work', async () => {
    const { job, come, all, time } = elasticJob();
    const { members } = await come(2);
    const newcomers = await all([job.join(), job.join()]);
    expect(members.map(({ isChangeDue }) => isChangeDue)).toEqual([false, false]);
    const entering = newcomers.map((member) => member.reform({ step: 0 }));
    await time.run(MAX_EVENTS);
    expect(members.map(({ isChangeDue }) => isChangeDue)).toEqual([true, true]);
    const staying = members.map((member) => member.reform({ step: 3 }));
    const next = await all([...staying, ...entering]);
    expect(idsOf(next[3]!)).toEqual([0, 1, 2, 3]);
    expect(next[3]).toMatchObject({ joined: [2, 3], left: [], source: 0, step: 3 });
    expect(members[0]!.isChangeDue).toBe(false);
    expect(await sumOver(next)).toEqual([10, 10, 10, 10]);
  });

  it('goes on with one, and grows again', async () => {
    const { job, come, all, time } = elasticJob();
    const { members } = await come(3);
    job.kill(0);
    job.kill(1);
    const [alone] = await all([members[2]!.reform({ step: 9 })]);
    expect(alone!.group.worldSize).toBe(1);
    const [newcomer] = await all([job.join()]);
    const entering = newcomer!.reform({ step: 0 });
    await time.run(MAX_EVENTS);
    const next = await all([members[2]!.reform({ step: 9 }), entering]);
    expect(next[1]).toMatchObject({ number: 3, joined: [3], source: 0, step: 9 });
    expect(idsOf(next[1]!)).toEqual([2, 3]);
  });

  it.each([
    ['are killed', 'nobody is left who has its state'],
    ['have left', 'those who had its state have left'],
  ])('ends for a newcomer that has not copied the state when all others %s', async (how, told) => {
    const { job, come, settle, all, time } = elasticJob();
    const { members } = await come(1);
    const [newcomer] = await all([job.join()]);
    const entering = newcomer!.reform({ step: 0 });
    await time.run(MAX_EVENTS);
    await all([members[0]!.reform({ step: 9 }), entering]);
    const leaving = how === 'are killed' ? job.kill(0) : members[0]!.leave();
    const [outcome] = await settle([newcomer!.reform({ step: 0 })]);
    await leaving;
    expect(outcome).toMatchObject({ status: 'rejected' });
    const { reason } = outcome as PromiseRejectedResult;
    expect(reason).toBeInstanceOf(MembershipError);
    expect(reason).toMatchObject({ code: 'MEMBERSHIP', kind: 'ended' });
    expect(reason.message).toContain(told);
  });

  it('goes on when one leaves, whose later calls say so', async () => {
    const { come, all } = elasticJob();
    const { members, epochs } = await come(3);
    await members[0]!.leave();
    const [outcome] = await Promise.allSettled([epochs[1]!.group.barrier()]);
    expect(outcome).toMatchObject({ reason: { code: 'EPOCH', originRank: 0, lost: [] } });
    const next = await all([1, 2].map((rank) => members[rank]!.reform({ step: 2 })));
    expect(next[0]).toMatchObject({ left: [0], source: 0 });
    expect(members[0]!.isChangeDue).toBe(true);
    await expect(members[0]!.reform({ step: 2 })).rejects.toThrow(/member 0 is gone: it has left/);
  });

  it('survives a loss while it forms', async () => {
    const { job, come, all } = elasticJob();
    const { members } = await come(4);
    const pending = members.slice(0, 3).map((member) => member.reform({ step: 6 }));
    job.kill(3);
    job.kill(1);
    pending[1]!.catch(() => {});
    const next = await all([pending[0]!, pending[2]!]);
    expect(idsOf(next[0]!)).toEqual([0, 2]);
    expect(await sumOver(next)).toEqual([3, 3]);
  });

  it('leads who waits beyond max to the place of one that is killed', async () => {
    const { job, come, all, time } = elasticJob({ max: 2 });
    const { members } = await come(2);
    const [spare] = await all([job.join()]);
    const entering = spare!.reform({ step: 0 });
    await time.run(MAX_EVENTS);
    expect(members[0]!.isChangeDue).toBe(false);
    expect(job.status.waiting).toEqual([2]);
    job.kill(1);
    const next = await all([members[0]!.reform({ step: 4 }), entering]);
    expect(next[1]).toMatchObject({ joined: [2], left: [1], step: 4 });
  });
});

describe('who watches a job', () => {
  it('hears who comes, and who goes and how, each once', async () => {
    const words: string[] = [];
    const onChange = ({ phase, epoch, step, came, gone, members }: CoordinatorChange) => {
      words.push(...came.map((id) => `${id} has come`));
      words.push(...gone.map(({ id, how, reason }) => `${id} ${how}: ${reason}`));
      if (phase === 'running' && members.length > 0) {
        words.push(`epoch ${epoch} of ${members.join()} from step ${step}`);
      }
    };
    const { job, come, all } = elasticJob({ onChange });
    const { members } = await come(3);
    job.kill(2);
    await all([members[0]!.reform({ step: 4 }), members[1]!.reform({ step: 5 })]);
    await members[1]!.leave();
    await all([members[0]!.reform({ step: 6 })]);
    expect(words).toEqual([
      '0 has come',
      '1 has come',
      '2 has come',
      'epoch 1 of 0,1,2 from step 0',
      '2 lost: its connection has ended',
      'epoch 2 of 0,1 from step 5',
      '1 left: it has left',
      'epoch 3 of 0 from step 6',
    ]);
  });

  it('hears from a coordinator that was started again who has not come to it', async () => {
    const gone: Departure[] = [];
    const { job, come, all } = elasticJob({ onChange: (change) => gone.push(...change.gone) });
    const { members } = await come(3);
    job.kill(1);
    job.restartCoordinator();
    await all([members[0]!.reform({ step: 3 }), members[2]!.reform({ step: 3 })]);
    expect(gone).toEqual([{ id: 1, how: 'lost', reason: 'it has not come again' }]);
  });
});

describe('a coordinator that is started again', () => {
  it('changes nothing for those at work', async () => {
    const { job, come, time } = elasticJob();
    const { epochs } = await come(3);
    job.restartCoordinator();
    await time.run(MAX_EVENTS);
    expect(job.status).toMatchObject({ phase: 'running', epoch: 1, members: [0, 1, 2] });
    expect(await sumOver(epochs)).toEqual([6, 6, 6]);
  });

  it('leads on those that wait for an epoch', async () => {
    const { job, come, all } = elasticJob();
    const { members } = await come(3);
    const pending = members.slice(0, 2).map((member) => member.reform({ step: 7 }));
    job.kill(2);
    job.restartCoordinator();
    const next = await all(pending);
    expect(next[0]).toMatchObject({ left: [2], step: 7 });
    expect(next[0]!.number).toBeGreaterThan(1000);
    expect(await sumOver(next)).toEqual([3, 3]);
  });
});

describe('reform', () => {
  it.each([
    [{ step: -1 }, /steps that are done, got -1/],
    [{ step: 0.5 }, /steps that are done, got 0.5/],
    [{ step: 1, note: 'x'.repeat(1025) }, /at most 1024 bytes, got 1025/],
    [{ step: 1, note: '\u20ac'.repeat(342) }, /at most 1024 bytes, got 1026/],
  ])('refuses %#', async (edge, message) => {
    const { job, all } = elasticJob();
    const [member] = await all([job.join()]);
    await expect(member!.reform(edge)).rejects.toThrow(message);
  });

  it('refuses a second call while the first one waits', async () => {
    const { job, all } = elasticJob({ min: 2 });
    const [member] = await all([job.join()]);
    const first = member!.reform({ step: 0 });
    await expect(member!.reform({ step: 0 })).rejects.toThrow(/the reform before/);
    await member!.leave();
    await expect(first).rejects.toThrow(MembershipError);
  });
});

describe('the group of an epoch', () => {
  const harness = {
    name: 'an epoch',
    worldSizes: [3],
    create: async (worldSize: number, options = {}) => {
      const job = new MemoryElasticJob({ min: worldSize, max: worldSize, ...options });
      const members = await Promise.all(Array.from({ length: worldSize }, () => job.join()));
      const epochs = await Promise.all(members.map((member) => member.reform({ step: 0 })));
      return epochs.map(({ group }, rank) => ({ group, kill: () => job.kill(members[rank]!.id) }));
    },
  };
  const wanted = /all-reduce|reduce-scatter|all-gather|send|split|transcript/i;

  it.each(conformanceCases.filter(({ name }) => wanted.test(name)).map((one) => [one.name, one]))(
    '%s',
    async (_, { worldSizes, run }) => {
      if (worldSizes.includes(3)) {
        await run(harness, 3);
      }
    },
  );
});
