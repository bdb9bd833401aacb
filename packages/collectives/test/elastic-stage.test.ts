// Elastic jobs over simulated sockets, on virtual time: the worst of days, one by one. Each ends
// with one job or a sentence; elastic-simulation.test.ts has such things happen at random.

import { expect, it } from 'vitest';
import { COORDINATOR, ElasticStage } from './support/elastic-stage.js';

it('halves that both reach the coordinator are one job, into which the others come again', async () => {
  await ElasticStage.play({ count: 4 }, async (stage, [a, b, c, d]) => {
    stage.cut([a!, d!], [b!, c!]);
    await stage.works(a!, d!);
    for (const one of [b!, c!]) {
      expect(stage.ends.get(one)!.text).toMatch(
        /fenced: it has no path to some of the members 0, 3/,
      );
    }
    stage.net.heal();
    await stage.works(a!, d!, stage.come(), stage.come());
  });
});

it('a half that does not reach the coordinator ends within 10 s, and the job is the other one', async () => {
  await ElasticStage.play({ count: 4 }, async (stage, [a, b, c, d]) => {
    const cutMs = stage.time.nowMs;
    stage.cut([a!, b!], [c!, d!, COORDINATOR]);
    await stage.works(c!, d!);
    await stage.time.sleep(cutMs + 10_500 - stage.time.nowMs);
    for (const one of [a!, b!]) {
      const { text, atMs } = stage.ends.get(one)!;
      expect(text).toMatch(/is alone: .*Save what is needed, and end/);
      expect(atMs - cutMs).toBeLessThan(10_000);
    }
    stage.net.heal();
    await stage.works(c!, d!, stage.come(), stage.come());
  });
});

it('a process that is stopped for ten minutes comes back as a newcomer', async () => {
  await ElasticStage.play({ count: 2 }, async (stage, [stopped, other]) => {
    stopped!.stop();
    await stage.works(other!);
    await stage.time.sleep(600_000);
    expect(stage.ends.get(stopped!)).toBeUndefined();
    stopped!.wake();
    await stage.time.sleep(3000);
    expect(stage.ends.get(stopped!)!.text).toMatch(/member 0 is fenced: .* It may join again/);
    await stage.works(other!, stage.come());
    expect(stage.change.members).toEqual([1, 2]);
  });
});

it('the first rank is killed, and the job goes on without it', async () => {
  await ElasticStage.play({ count: 4 }, async (stage, [first, ...others]) => {
    first!.sockets.kill();
    await stage.works(...others);
    expect(stage.change.members).toEqual([1, 2, 3]);
  });
});

it('ranks whose coordinator is killed end within 10 s, with a sentence', async () => {
  await ElasticStage.play({ count: 3 }, async (stage, members) => {
    const killedMs = stage.time.nowMs;
    stage.coordinator.kill();
    await stage.time.sleep(12_000);
    for (const one of members) {
      const { text, atMs } = stage.ends.get(one)!;
      expect(text).toMatch(/is alone: .*the job goes on when it is started again/);
      expect(atMs - killedMs).toBeLessThan(10_000);
    }
  });
});

it('a coordinator that wakes up beside the one that was started in its place leads nobody', async () => {
  await ElasticStage.play({ count: 3 }, async (stage, members) => {
    const old = stage.coordinator;
    old.process.pause();
    stage.serve({ begin: 'again' });
    await stage.time.sleep(8000);
    await stage.works(...members);
    expect(stage.change).toMatchObject({ epoch: 1, members: [0, 1, 2] });
    old.process.resume();
    members[0]!.sockets.kill();
    await stage.works(members[1]!, members[2]!);
    await stage.time.sleep(40_000);
    await stage.works(members[1]!, members[2]!);
    expect(stage.ends.size).toBe(0);
  });
});
