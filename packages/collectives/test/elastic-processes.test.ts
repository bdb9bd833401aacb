// Processes of an elastic job over WebSockets are killed, come and leave, and the job goes on: each
// step has one state, whoever did it. The times are printed, and none is asserted.

import { afterEach, expect, it } from 'vitest';
import { atWork, checkStates, ElasticJob } from './support/elastic-job.js';

let job: ElasticJob;

afterEach(() => job.end());

it('goes on when one is killed, one comes, and the first one leaves', async () => {
  job = await ElasticJob.create();
  await job.serve();
  const first = await job.join(3);
  await atWork(first);

  const killedMs = Date.now();
  first[2]!.signal('SIGKILL');
  const left = first.slice(0, 2);
  const lost = await first[2]!.lastJoined();
  const nextMs = await atWork(left);
  process.stdout.write(`a step after a kill: ${nextMs - killedMs} ms\n`);
  for (const child of left) {
    expect(await child.hears('over')).toMatchObject({ lost: [lost] });
  }

  const [newcomer] = await job.join(1);
  await atWork([...left, newcomer!]);
  left[0]!.order({ type: 'leave' });
  await left[0]!.hears('left');
  expect(await left[0]!.ended()).toBe(0);
  await atWork([left[1]!, newcomer!]);
  checkStates([...first, newcomer!]);
});
