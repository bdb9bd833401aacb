// An elastic job over memory: ranks are killed, leave and come, and weights and optimizer state end
// as those of one process that nothing disturbs. What is told of its steps is the same, too.

import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { noteOf, noteText, ranksInOrder } from '../src/rank/elastic/place.js';
import { differenceOf, proofOf } from '../src/rank/elastic/proof.js';
import type { StepMetrics } from '../src/rank/events.js';
import { type Disturbance, elasticJob, preparedRun } from './support/elastic-job.js';
import { runLine, tinyFlags, told } from './support/tiny-run.js';

const EVALUATED = '--valid-fraction 0.2 --eval-every 1 --eval-batches 1';
const root = newFolder();
const FLAGS = `${tinyFlags(root)} --cache ${root}/cache --gradient-groups 8 --steps 4 ${EVALUATED}`;
const DDP = `${FLAGS} --strategy ddp --ranks 2`;

/** The run of one process. */
const alone = (async () => {
  const out = newFolder();
  const run = await runLine(`${FLAGS} --strategy single --hash-every 4 --out ${out}`);
  return { told: told(run), hash: run.steps.at(-1)!.hash! };
})();

/** A job that has to end as the run of one process does. */
async function jobThatGoesOn(
  disturbances: readonly Disturbance[],
  options: Parameters<typeof elasticJob>[2],
) {
  const job = await elasticJob(await preparedRun(DDP), disturbances, options);
  const { told: expected, hash } = await alone;
  expect(job.hashes).toEqual(job.hashes.map(() => hash));
  expect(job.hashes.length).toBeGreaterThan(0);
  expect(told(job as never)).toEqual(expected);
  return job;
}

describe('an elastic job has one hash, and tells the same of its steps, where', () => {
  it('ranks are killed, leave and come from 1 to 8 and back', async () => {
    const job = await jobThatGoesOn(
      [
        ...[4, 5, 6, 7, 8, 9].map((when) => ({ when, what: 'join' }) as const),
        { when: 180, what: 'kill', pick: 2 },
        { when: 195, what: 'kill', pick: 0 },
        { when: 225, what: 'leave', pick: 1 },
        ...[250, 270].map((when) => ({ when, what: 'kill' }) as const),
      ],
      { ranks: 2 },
    );
    expect(job.errors).toEqual([]);
    expect(Math.max(...job.sizes)).toBe(8);
    expect([...job.warm].sort()).toEqual([2, 3, 4, 5, 6, 7]); // those who came; nobody waits for it
    expect(job.done.map((text) => text.split(' ')[0])).toContain('leave');
    const held = [...job.bytes.values()].flatMap((bytes) => [...bytes]);
    expect(new Set(held).size).toBe(1); // what is held does not depend on what has been
  });

  it.each([
    ['a newcomer copies weights', 'ddp parameters'],
    ['a newcomer copies the state of the optimizer', 'ddp join optimizers'],
  ])('the rank whose state it is is killed while %s', async (_, when) => {
    const job = await jobThatGoesOn(
      [
        { when: 8, what: 'join' },
        { when, what: 'kill', pick: 0 },
      ],
      { ranks: 2 },
    );
    expect(job.done).toEqual([expect.stringMatching(/^kill 0/)]);
    expect(job.sizes).toEqual([2, 2]);
  });

  it('the first rank is killed before an evaluation has ended, which is done again', async () => {
    const job = await jobThatGoesOn([{ when: 'loss', what: 'kill' }], { ranks: 3 });
    expect(job.sizes).toEqual([3, 2]);
  });

  it('a slow rank has fewer groups of rows from the next change on', async () => {
    const job = await jobThatGoesOn([{ when: 20, what: 'join' }], { ranks: 2, groupMs: [10, 40] });
    expect(job.sizes).toEqual([2, 3]);
    expect([...job.dealt].sort()).toEqual([
      [0, 5],
      [1, 1],
      [2, 2], // it has told no time, and counts as the mean of the others
    ]);
  });

  it('a rank hears nothing of a decision, and ends the step by itself', async () => {
    const config = await preparedRun(DDP.replace('--eval-every 1', '--eval-every 4'));
    const job = await elasticJob(config, [], { ranks: 3, deaf: { id: 2, step: 3, kill: 1 } });
    const { hash } = await alone;
    expect(job.hashes.filter(Boolean)).toEqual([hash, hash]);
    expect(job.sizes).toEqual([3, 2]);
    expect(job.numFinished).toBe(1);
  });
});

it('adapters beside a base in shards end as one process, where ranks are killed and come', async () => {
  const base = newFolder();
  await runLine(`${FLAGS} --strategy single --steps 1 --out ${base}`);
  const flags = `${FLAGS.replace(`--model ${root}`, `--model ${base}`)} --lora-rank 2`;
  const alone = await runLine(`${flags} --strategy single --hash-every 4 --out ${newFolder()}`);
  const config = await preparedRun(`${flags} --strategy fsdp --ranks 2`);
  const disturbances = [
    { when: 'loss', what: 'kill' },
    { when: 'loss', what: 'kill', pick: 1 },
    { when: 'valid loss', what: 'join' },
  ] as const;
  const job = await elasticJob(config, disturbances, { ranks: 4 });
  expect(job.errors).toEqual([]);
  expect(job.hashes).toEqual(job.hashes.map(() => alone.steps.at(-1)!.hash));
  expect(told(job as never)).toEqual(told(alone));
  expect(job.sizes).toEqual([4, 2, 3]);
  expect(job.hashes).toHaveLength(3);
});

it('a rank that is left saves where there are fewer than the job may have', async () => {
  const disturbances = [{ when: 'valid loss', what: 'kill', pick: 1 }] as const;
  const job = await elasticJob(await preparedRun(DDP), disturbances, { ranks: 2, min: 2 });
  expect(job.kept).toEqual([1]);
  expect(job.errors.map(String)).toEqual([expect.stringContaining('of at least 2')]);
});

describe('a newcomer', () => {
  it('leaves with a sentence where its flags are others, and the job goes on', async () => {
    const joining = await preparedRun(`${DDP} --lr 0.5`);
    const job = await jobThatGoesOn([{ when: 10, what: 'join' }], { ranks: 2, joining });
    expect(job.errors.map(String)).toEqual([
      "UsageError: this rank can't join the job: its flags are not what the others have. Give no other flags than the job has.",
    ]);
  });
});

it('a proof tells which of its parts differ', async () => {
  const config = await preparedRun(DDP);
  const own = await proofOf(config, 'a');
  const says = async (other: Partial<typeof config>, numericClass = 'a') =>
    differenceOf(own, await proofOf({ ...config, ...other }, numericClass));
  const tokens = { ...config.tokens, train: [{ ...config.tokens.train[0]!, directory: 'x' }] };
  expect(await says({ lr: 7 })).toMatch(/^its flags are not what/);
  const { modelConfig } = await preparedRun(`${DDP} --dropout 0`);
  expect(await says({ modelConfig })).toMatch(/^its model is not/);
  expect(await says({ tokens })).toBe(
    'its data is not what the others have. Give the same --data.',
  );
  expect(await says({ evalBatches: 9, tokens })).toMatch(
    /^its flags, data and evaluation data are/,
  );
  expect(await says({}, 'b')).toMatch(/^its numeric class is not what/);
  const theirs = own.split('|').with(-1, '0').with(0, '0').join('|');
  expect(differenceOf(own, theirs)).toMatch(/code is not what .* Install the same version\.$/);
  expect(await proofOf(config, 'a')).toBe(own);
});

it.each([
  [
    '--strategy fsdp --gradient-groups 4',
    'expected --strategy ddp, or fsdp with --lora-rank, with',
  ],
  ['--strategy fsdp --lora-rank 2 --gradient-groups 4', 'got a model without any'],
  ['--strategy ddp', 'got --strategy ddp and none'],
])('a run with %s can have no other ranks', async (flags, message) => {
  const job = await elasticJob(
    await preparedRun(`${tinyFlags(root)} --cache ${root}/cache ${flags}`),
    [],
    { ranks: 1 },
  );
  expect(job.errors.map(String)).toEqual([expect.stringContaining(message)]);
});

it('an epoch begins with one that is heard, and with the newest state where it is', () => {
  const place = { step: 3, updates: 3, isTold: true };
  const heard = [false, true, true];
  const members = heard.map((isAttached, id) => {
    return { id, step: 3, note: noteText({ isAttached, proof: 'p', place }) };
  });
  expect([0, 1, 2].map((source) => ranksInOrder(members, source))).toEqual([
    [1, 2, 0],
    [1, 2, 0],
    [2, 1, 0],
  ]);
  expect(ranksInOrder(members.slice(0, 1), 0)).toBeUndefined();
});

describe('a note', () => {
  const metrics = { step: 3, loss: Number.NaN, groups: { a: {} } } as unknown as StepMetrics;
  const resources = { peakBytes: 1, wireBytes: 2 };
  const place = { step: 3, updates: 2, validLoss: Number.NaN, isTold: false };

  it('comes back as it was, but for figures of layers', () => {
    const note = noteText({
      isAttached: true,
      proof: 'p',
      undecided: 3,
      place: { ...place, last: { metrics, resources } },
    });
    const { groups: _, ...kept } = metrics;
    const last = { metrics: kept, resources };
    expect(noteOf({ note })).toEqual({
      isAttached: true,
      proof: 'p',
      undecided: 3,
      place: { ...place, last },
    });
  });

  it('leaves figures out where there are many', () => {
    const figures = Object.fromEntries(Array.from({ length: 90 }, (_, i) => [`figure-${i}`, i]));
    const last = { metrics: { ...metrics, figures, batchFigures: figures }, resources };
    const note = noteText({ isAttached: false, proof: 'p', place: { ...place, last } });
    expect(note.length).toBeLessThan(1000);
    expect(noteOf({ note }).place.last!.metrics).toEqual({ step: 3, loss: Number.NaN });
  });
});
