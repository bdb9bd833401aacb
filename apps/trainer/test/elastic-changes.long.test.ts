// An elastic job in which each twenty steps one rank of four is killed and another one comes. What
// is counted is what the changes cost: rows that are computed again, and bytes that stay.

import { beforeEach, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import type { dealtRows } from '../src/data/dealt-rows.js';
import { splitMix32 } from '../src/seeded-random.js';
import { type Disturbance, elasticJob, preparedRun } from './support/elastic-job.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const GROUPS = 8;
const RANKS = 4;
const KILLS = 50;
const STEPS_EACH = 20;
// Quiet, since a text has calls of its own, and what is counted are those of steps.
const FLAGS = `--gradient-groups ${GROUPS} --precision bf16 --lora-rank 2 --quiet`;

let numGroups = 0;
vi.mock('../src/data/dealt-rows.js', async (importOriginal) => {
  const original = await importOriginal<{ readonly dealtRows: typeof dealtRows }>();
  const counted: typeof dealtRows = (data, parts) => {
    const dealt = original.dealtRows(data, parts);
    const microBatch: typeof dealt.microBatch = async (...place) => {
      const batch = await dealt.microBatch(...place);
      numGroups += Number(batch.rows > 0);
      return batch;
    };
    return { ...dealt, microBatch };
  };
  return { dealtRows: counted };
});
beforeEach(() => {
  numGroups = 0;
});

describe.each(['ddp', 'fsdp'])('adapters over %s, a hundred changes', (strategy) => {
  it('compute few rows twice, hold what their number asks for, and end as one process', async () => {
    const root = newFolder();
    const tiny = `${tinyFlags(root)} --cache ${root}/cache`;
    const base = newFolder();
    await runLine(`${tiny} --strategy single --steps 1 --out ${base}`);
    const steps = KILLS * STEPS_EACH;
    const flags = `${tiny.replace(`--model ${root}`, `--model ${base}`)} ${FLAGS}`;
    const once = `${flags} --strategy single --steps ${steps} --hash-every ${steps}`;
    const alone = await runLine(`${once} --out ${newFolder()}`);
    const planned = (n: number) =>
      preparedRun(`${flags} --strategy ${strategy} --ranks 2 --steps ${n}`);
    const calls = async (n: number) =>
      (await elasticJob(await planned(n), [], { ranks: RANKS })).numCalls;
    const callsOfStep = ((await calls(6)) - (await calls(2))) / 4;
    const random = splitMix32(1, 0);
    const changes = Array.from({ length: KILLS }, (_, i): Disturbance[] => {
      const when = Math.floor((i + 0.25 + random() / 2 ** 33) * STEPS_EACH * callsOfStep);
      return [
        { when, what: 'kill', pick: random() % RANKS },
        { when: when + 1, what: 'join' },
      ];
    }).flat();
    numGroups = 0;
    const job = await elasticJob(await planned(steps), changes, { ranks: RANKS });

    // The last one may come when the others are done, and leave.
    expect(job.errors.map(String).filter((text) => !text.includes('have left'))).toEqual([]);
    expect(job.done.length).toBeGreaterThan(0.9 * KILLS); // the last ones may come after the end
    expect(job.hashes.length).toBeGreaterThan(0);
    expect(new Set(job.hashes)).toEqual(new Set([alone.steps.at(-1)!.hash]));
    expect(numGroups).toBeGreaterThan(steps * GROUPS); // each loss costs some, and all are counted
    expect((steps * GROUPS) / numGroups).toBeGreaterThan(0.9);
    for (const held of job.bytes.values()) {
      expect(held.size).toBe(1);
    }
  }, 1_800_000);
});
