// Random schedules of the coordinator of an elastic job and the machines of its members, without
// sockets, which hold what must never happen.

import { expect, it } from 'vitest';
import { MembershipSchedule, type ScheduleFigures } from './support/membership-schedule.js';

/** The number of random schedules; by hand some tens of thousands. */
const NUM_SCHEDULES = Number(process.env.SHARDWEAVE_MEMBERSHIP_SCHEDULES ?? 2000);

it(`one job is left after each of ${NUM_SCHEDULES} random schedules`, { timeout: 600_000 }, () => {
  const kinds = new Map<string, number>();
  const figures: ScheduleFigures = { numEpochs: 0, numSteps: 0, numEnded: 0, kinds };
  for (let seed = 1; seed <= NUM_SCHEDULES; seed++) {
    const schedule = new MembershipSchedule(seed, figures);
    try {
      schedule.run();
    } catch (error) {
      const events = schedule.trace.slice(-80).join('\n');
      throw new Error(`seed ${seed}: ${(error as Error).message}, after\n${events}`);
    }
  }
  const { numEpochs, numSteps, numEnded } = figures;
  const counts = [...kinds].map(([kind, count]) => `${count} ${kind}`).join(', ');
  process.stdout.write(
    `${NUM_SCHEDULES} schedules: ${numEpochs} epochs, ${numSteps} steps, ${numEnded} ended; ${counts}\n`,
  );
  expect(kinds.size).toBe(14);
  expect(numEpochs).toBeGreaterThan(NUM_SCHEDULES);
  expect(numEnded).toBeLessThan(NUM_SCHEDULES / 2);
});
