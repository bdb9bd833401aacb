// A hundred ranks of elastic jobs are killed at seeded moments: in steps, in recoveries, and all
// but one at once. No save is ever read. What is trained are all weights, or adapters.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { findSaves } from '../src/files/save-directory.js';
import { splitMix32 } from '../src/seeded-random.js';
import { buildCommand } from './support/build-command.js';
import { adapterOf, ElasticRun, overBase, Spoken } from './support/elastic-run.js';
import { runLine } from './support/tiny-run.js';

const FLAGS =
  '--model nano --seq 16 --batch 8 --gradient-groups 8 --schedule constant --device cpu --threads 1';
const RANKS = 4;
const KILLS = 50;
const HASH_EVERY = 10;
const LONG_MS = 1_800_000;

let script: string;
beforeAll(async () => {
  script = await buildCommand();
});

describe('train --elastic, with 50 kills', { timeout: LONG_MS }, () => {
  it.each([
    ['all weights', 1, ''],
    ['adapters', 2, '--lora-rank 2'],
  ])('trains %s as if nothing had happened', async (_, seed, how) => {
    const numbers = splitMix32(seed, 0);
    const random = () => numbers() / 2 ** 32;
    const out = join(newFolder(), 'run');
    const flags = `${FLAGS} ${how}`.trim();
    const line = `${flags} --hash-every ${HASH_EVERY} --strategy ddp --ranks ${RANKS} --max-restarts ${KILLS} --save-every 1000000 --steps 1000000`;
    await using run = new ElasticRun(script, line, out);
    await run.untilAtWork(RANKS);
    for (let numKilled = 0; numKilled < KILLS; ) {
      // All of them have the state by now, so that one of them is enough.
      const ranks = [...run.ranks];
      const numAtOnce = Math.min(1 + Math.floor(random() * (RANKS - 1)), KILLS - numKilled);
      for (let i = 0; i < numAtOnce; i++) {
        const [pid] = ranks.splice(Math.floor(random() * ranks.length), 1);
        process.kill(pid!, 'SIGKILL');
        numKilled += 1;
        // The next one dies in the same step, in the recovery, or in steps after it.
        await delay(random() < 0.3 ? 0 : random() * 600);
      }
      await run.until(() => run.numLost === numKilled);
      await run.untilRanks(RANKS);
    }
    run.child.kill('SIGINT');
    expect(await run.ended, run.said).toBe(130);

    const { steps } = run;
    expect(steps.map(({ step }) => step)).toEqual(steps.map((_, i) => i + 1)); // each once
    expect(run.numLost).toBe(KILLS);
    const hashed = steps.findLast(({ hash }) => hash !== undefined)!;
    const alone = `${flags} --strategy single --hash-every ${hashed.step} --steps ${hashed.step}`;
    const { steps: undisturbed } = await runLine(`${alone} --out ${join(newFolder(), 'alone')}`);
    expect(hashed.hash).toBe(undisturbed.at(-1)!.hash);
    expect(steps.slice(0, hashed.step).map(({ loss }) => loss)).toEqual(
      undisturbed.map(({ loss }) => loss),
    );
  });
});

describe('a job whose ranks change', { timeout: LONG_MS }, () => {
  it('goes on from saves with one rank less, to the same weights, where it is sharded', async () => {
    const out = join(newFolder(), 'run');
    const steps = 200;
    const line = `${FLAGS} --strategy fsdp --transport ws --ranks 3 --save-every 5 --hash-every ${steps} --steps ${steps}`;
    await using run = new ElasticRun(script, line, out);
    for (const step of [12, 60]) {
      await run.untilStep(step);
      process.kill(run.ranks.at(-1)!, 'SIGKILL');
      await run.until(() => run.said.split('Starting again').length === (step === 12 ? 2 : 3));
    }
    expect(await run.ended, run.said).toBe(0);
    expect(run.said).toContain('Starting again from the last save (on 2 ranks).');
    expect(run.said).toContain('Starting again from the last save (on 1 rank).');
    const alone = `${FLAGS} --strategy single --hash-every ${steps} --steps ${steps}`;
    const undisturbed = await runLine(`${alone} --out ${join(newFolder(), 'alone')}`);
    expect(run.steps.map(({ hash }) => hash)).toEqual(undisturbed.steps.map(({ hash }) => hash));
  });

  it('trains adapters beside a sharded base while ranks are killed, come and leave, and resumed', async () => {
    const { flags, folder } = await overBase();
    const out = join(folder, 'run');
    const line = `${flags} --strategy fsdp --ranks 3 --max-ranks 4 --save-every 5 --sample-every 10`;
    const env = { SHARDWEAVE_CACHE: newFolder() };
    let last = 0;
    {
      await using run = new ElasticRun(script, `${line} --steps 100000`, out);
      await run.untilStep(2);
      process.kill(run.ranks[0]!, 'SIGKILL');
      await run.untilRanks(2);
      const joined = await run.join('', env);
      await run.untilRanks(3);
      const left = new Spoken(script, ['leave'], env);
      expect(await left.ended, left.said).toBe(0);
      expect(await joined.ended, joined.said).toBe(0);
      await run.untilRanks(2);
      run.child.kill('SIGINT');
      expect(await run.ended, run.said).toBe(130);
      last = run.steps.at(-1)!.step + 3;
    }
    await using again = new ElasticRun(script, `${line} --steps ${last} --resume auto`, out);
    expect(await again.ended, again.said).toBe(0);
    const alone = join(folder, 'alone');
    const { steps } = await runLine(`${flags} --strategy single --steps ${last} --out ${alone}`);
    const losses = again.steps.map(({ step, loss, validLoss }) => [step, loss, validLoss]);
    expect(losses).toEqual(steps.map(({ step, loss, validLoss }) => [step, loss, validLoss]));
    expect(adapterOf(out).equals(adapterOf(alone))).toBe(true);
  });

  it('saves where fewer are left than --min-ranks for 30 s, and goes on from there', async () => {
    const out = join(newFolder(), 'run');
    const line = `${FLAGS} --strategy ddp --ranks 2 --min-ranks 2 --save-every 1000000 --hash-every 1`;
    await using run = new ElasticRun(script, `${line} --steps 1000000`, out);
    await run.untilStep(5);
    process.kill(run.ranks[0]!, 'SIGKILL'); // the first one, which would have made the saves
    expect(await run.ended, run.said).toBe(1);
    expect(run.said).toContain('--min-ranks is 2: waiting 30 s for others to join');
    const last = run.steps.at(-1)!;
    const [save] = await findSaves(join(out, 'saves'));
    expect(save).toMatchObject({ step: last.step, record: { hash: last.hash } });
    const steps = last.step + 3;
    await using again = new ElasticRun(script, `${line} --steps ${steps} --resume auto`, out);
    expect(await again.ended, again.said).toBe(0);
    const alone = `${FLAGS} --strategy single --hash-every ${steps} --steps ${steps}`;
    const undisturbed = await runLine(`${alone} --out ${join(newFolder(), 'alone')}`);
    expect(again.steps.at(-1)!.hash).toBe(undisturbed.steps.at(-1)!.hash);
  });

  it('turns away who has no secret, another one, other data or another model, and goes on', async () => {
    const out = join(newFolder(), 'run');
    const text = join(newFolder(), 'other.txt');
    writeFileSync(text, 'It is not down in any map; true places never are. '.repeat(200));
    const line = `${FLAGS} --strategy ddp --ranks 2 --save-every 1000000 --steps 1000000`;
    await using run = new ElasticRun(script, line, out);
    await run.untilStep(3);
    const turnedAway = async (flags: string, env: NodeJS.ProcessEnv, code: number) => {
      const joined = await run.join(flags, { SHARDWEAVE_CACHE: newFolder(), ...env });
      expect(await joined.ended, joined.said).toBe(code);
      return joined.said;
    };
    expect(await turnedAway('', { SHARDWEAVE_JOB_SECRET: undefined }, 2)).toMatch(
      /the secret of the job is not given\. Set SHARDWEAVE_JOB_SECRET/,
    );
    expect(await turnedAway('', { SHARDWEAVE_JOB_SECRET: 'another secret of a job' }, 1)).toMatch(
      /secret/,
    );
    expect(await turnedAway(`--data ${text}`, {}, 2)).toMatch(
      /this rank can't join the job: its data is not what the others have/,
    );
    expect(await turnedAway(`--model ${text}`, {}, 2)).toMatch(/the job has the preset nano/);
    const { step } = run.steps.at(-1)!;
    await run.untilStep(step + 5);
    expect(run.ranks).toHaveLength(2);
  });
});
