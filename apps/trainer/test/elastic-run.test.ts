// An elastic job of real processes over ws. What is shown is that it goes on, and ends with the
// weights of a run that nothing disturbed; elastic-rank.test.ts has every moment of a step.

import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { adapterOf, ElasticRun, overBase, Spoken } from './support/elastic-run.js';
import { isAlive } from './support/killed-run.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

/** Longer than a busy machine takes for any of it. */
const LONG_MS = 100_000;
/** Where ranks are several, delays in each collective keep the run from a great many steps. */
const FLAGS = `${tinyFlags(newFolder())} --gradient-groups 4 --schedule constant --inject-delay-ms 50`;
const HASH_EVERY = 5;

let script: string;
beforeAll(async () => {
  script = await buildCommand();
});

/** The hash that one process has after so many steps. */
async function hashAlone(steps: number): Promise<string> {
  const out = join(newFolder(), 'alone');
  const line = `${FLAGS} --strategy single --hash-every ${steps} --steps ${steps} --out ${out}`;
  return (await runLine(line)).steps.at(-1)!.hash!;
}

describe('train --elastic', { timeout: LONG_MS }, () => {
  it('goes on to the same weights where ranks are killed, stopped, woken up, and come', async () => {
    const out = join(newFolder(), 'run');
    const line = `${FLAGS} --hash-every ${HASH_EVERY} --save-every 8 --strategy ddp --ranks 3 --steps 100000`;
    await using run = new ElasticRun(script, line, out);
    const env = { SHARDWEAVE_CACHE: newFolder() };
    await run.untilStep(2);
    const joined = await run.join('', env);
    await run.untilRanks(4);
    const [killed, stopped] = run.ranks;
    process.kill(killed!, 'SIGKILL');
    process.kill(stopped!, 'SIGSTOP');
    process.kill(joined.child.pid!, 'SIGSTOP');
    await run.untilRanks(1);
    await run.until(() => !isAlive(stopped!)); // it must write nothing when it wakes up
    process.kill(joined.child.pid!, 'SIGCONT');
    await run.untilRanks(2);
    const left = new Spoken(script, ['leave'], env);
    expect(await left.ended, left.said).toBe(0);
    expect(await joined.ended, joined.said).toBe(0);
    await run.untilRanks(1);
    run.child.kill('SIGINT');
    expect(await run.ended).toBe(130);

    expect(joined.said).toMatch(/The job goes on without this rank .*\. Joining again\./);
    expect(joined.said).toContain('This rank has left; the job goes on.');
    const { steps } = run;
    expect(steps.map(({ step }) => step)).toEqual(steps.map((_, i) => i + 1)); // each once
    const hashed = steps.findLast(({ hash }) => hash !== undefined)!;
    expect(hashed.hash).toBe(await hashAlone(hashed.step));
    expect(run.said).toContain(`Stopped by Ctrl-C after step ${steps.length}, saved in`);
    const goneOn = run.changes.map(({ ranks, came, left, lost }) => [ranks, came, left, lost]);
    expect(goneOn.at(-1)).toEqual([1, 0, 1, 0]);
  });

  it('shards a frozen base, and leaves the adapters of one process where a rank is killed', async () => {
    const { flags, folder } = await overBase();
    const out = join(folder, 'run');
    const line = `${flags} --strategy fsdp --ranks 3 --steps 16 --inject-delay-ms 20 --sample-every 8 --sample-prompt Ahoy`;
    await using run = new ElasticRun(script, line, out);
    await run.untilAtWork(3);
    const before = run.changes.length;
    process.kill(run.ranks[0]!, 'SIGKILL'); // the first one, which does what ranks do alone
    expect(await run.ended, run.said).toBe(0);
    expect(run.said).toMatch(/Ahoy(.|\n)*Ahoy(.|\n)*adapter\/ has the weights/);
    const changes = run.changes.slice(before);
    expect(changes.map(({ ranks, lost }) => [ranks, lost])).toEqual([[2, 1]]);
    const alone = join(folder, 'alone');
    const { steps } = await runLine(`${flags} --strategy single --steps 16 --out ${alone}`);
    expect(run.steps.map(({ loss }) => loss)).toEqual(steps.map(({ loss }) => loss));
    expect(adapterOf(out).equals(adapterOf(alone))).toBe(true);
  });
});
