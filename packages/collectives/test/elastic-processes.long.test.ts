// Processes of an elastic job are stopped, and killed while they form an epoch, and so is its
// coordinator. Each step has one state, whoever did it. Times are printed.

import { afterEach, describe, expect, it } from 'vitest';
import { atWork, checkStates, ElasticJob } from './support/elastic-job.js';

let job: ElasticJob;

afterEach(() => job.end());

const print = (what: string, ms: number) => process.stdout.write(`${what}: ${ms.toFixed(0)} ms\n`);

describe('a member that is stopped', () => {
  it('is missed by its signs of life, is fenced when it wakes, and comes again as a newcomer', async () => {
    job = await ElasticJob.create();
    await job.serve();
    const members = await job.join(3);
    await atWork(members);
    const stopped = members[1]!;
    const id = await stopped.lastJoined();
    stopped.signal('SIGSTOP');
    const startMs = Date.now();
    const nextMs = await atWork([members[0]!, members[2]!]);
    print('a step after SIGSTOP', nextMs - startMs);
    const numWords = stopped.words.length;
    stopped.signal('SIGCONT');
    const failed = await stopped.hears('failed');
    expect(failed.kind).toBe('fenced');
    const stepsSince = stopped.words.slice(numWords).filter(({ type }) => type === 'step');
    expect(stepsSince.length).toBeLessThanOrEqual(1); // a call's last bytes may have been there
    job.order(stopped);
    await stopped.hears('joined', (word) => word.id !== id);
    await atWork(members);
    checkStates(members);
  });
});

describe('a coordinator that is gone', () => {
  it.each(['SIGKILL', 'SIGSTOP'] as const)(
    'ends the job within ten seconds, in words: %s',
    async (signal) => {
      job = await ElasticJob.create();
      const coordinator = await job.serve();
      const members = await job.join(2);
      await atWork(members);
      coordinator.signal(signal);
      const startMs = Date.now();
      for (const member of members) {
        const { kind, message, atMs } = await member.hears('failed');
        expect(kind).toBe('alone');
        expect(message).toMatch(/the coordinator at 127.0.0.1:\d+ is gone/);
        expect(message).not.toContain(String(0xffffffff)); // a member that dials has no rank
        print(`alone after ${signal}`, atMs - startMs);
        expect(atMs - startMs).toBeLessThan(15_000); // on a busy machine
      }
    },
  );

  it('is replaced by one at the same port, which changes nothing', async () => {
    job = await ElasticJob.create();
    const coordinator = await job.serve();
    const members = await job.join(3);
    await atWork(members);
    coordinator.signal('SIGKILL');
    await job.serve({ begin: 'again' });
    const [newcomer] = await job.join(1);
    await atWork([...members, newcomer!]);
    expect(members[0]!.words.filter(({ type }) => type === 'epoch')).toHaveLength(2);
    checkStates([...members, newcomer!]);
  });

  it('is replaced while a member is lost', async () => {
    job = await ElasticJob.create();
    const coordinator = await job.serve();
    const members = await job.join(3);
    await atWork(members);
    coordinator.signal('SIGKILL');
    members[0]!.signal('SIGKILL');
    await job.serve({ begin: 'again', recoverMs: 2000 });
    await atWork(members.slice(1));
    checkStates(members);
  });
});

it('goes on down to one, and up again, while members are killed in all phases', async () => {
  job = await ElasticJob.create();
  await job.serve();
  let members = [...(await job.join(4))];
  const all = [...members];
  await atWork(members);
  for (let round = 0; round < 8; round++) {
    const numKilled = 1 + (round % 3);
    for (const child of members.splice(0, numKilled)) {
      child.signal('SIGKILL');
      // From at once to the middle of the next epoch's links.
      await new Promise((resolve) => setTimeout(resolve, round * 40));
    }
    const startMs = Date.now();
    print(`a step after ${numKilled} kills`, (await atWork(members)) - startMs);
    const newcomers = await job.join(numKilled);
    all.push(...newcomers);
    members = [...members, ...newcomers];
    await atWork(members);
  }
  checkStates(all);
});
