// An elastic job under schedules that a seed decides: from 1 to 8 ranks, of which some are killed,
// leave and come at any call, those of recoveries included.

import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { splitMix32 } from '../src/seeded-random.js';
import { type Disturbance, elasticJob, preparedRun } from './support/elastic-job.js';
import { runLine, tinyFlags, told } from './support/tiny-run.js';

/** The schedules of each way to train. */
const NUM_SCHEDULES = 8;
const STEPS = '--gradient-groups 8 --steps 6 --valid-fraction 0.2 --eval-every 2 --eval-batches 1';

function scheduleOf(seed: number): { readonly ranks: number; readonly list: Disturbance[] } {
  const next = splitMix32(seed, 0);
  const ranks = 1 + (next() % 8);
  const list = Array.from({ length: 10 }, (): Disturbance => {
    const what = (['kill', 'join', 'leave', 'join'] as const)[next() % 4]!;
    return { when: next() % 260, what, pick: next() % 8 };
  });
  return { ranks, list };
}

describe.each([
  ['the whole model', '--precision fp32', 'ddp', 1],
  // A newcomer has copies in 16 bits after its first forward only.
  ['the whole model in 16 bits, with a loss scale', '--precision fp16', 'ddp', 2],
  ['adapters', '--precision bf16 --lora-rank 2', 'ddp', 2],
  // What a rank holds of the base depends on how many there are.
  ['adapters beside a base in shards', '--precision bf16 --lora-rank 2', 'fsdp', 8],
])('%s under seeded schedules', (_, way, strategy, most) => {
  it('ends with the hash of one process, told alike, with no byte more than before', async () => {
    const root = newFolder();
    const bare = `${tinyFlags(root)} --cache ${root}/cache ${STEPS}`;
    const base = newFolder();
    await runLine(`${bare} --strategy single --steps 1 --out ${base}`);
    const flags = `${bare.replace(`--model ${root}`, `--model ${base}`)} ${way}`;
    const line = `${flags} --strategy single --hash-every 6 --out ${newFolder()}`;
    const alone = await runLine(line);
    const config = await preparedRun(`${flags} --strategy ${strategy} --ranks 2`);
    for (let seed = 0; seed < NUM_SCHEDULES; seed++) {
      const { ranks, list } = scheduleOf(seed);
      const job = await elasticJob(config, list, { ranks });
      const at = `seed ${seed}: ${job.done.join(', ')}`;
      expect(new Set(job.hashes), at).toEqual(new Set([alone.steps.at(-1)!.hash]));
      expect(told(job as never), at).toEqual(told(alone));
      const held = [...job.bytes.values()].flatMap((bytes) => [...bytes]);
      expect(new Set(held).size, at).toBeLessThanOrEqual(most);
    }
  }, 600_000);
});
