// An elastic job of threads that share memory: the end of one is no end of the job, whose weights
// are those of a run that nothing disturbed.

import { once } from 'node:events';
import { join } from 'node:path';
import type { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runElastic } from '../src/launch/run-elastic.js';
import type { RankEvent } from '../src/rank/events.js';
import { buildCommand } from './support/build-command.js';
import { preparedRun } from './support/elastic-job.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const FLAGS = `${tinyFlags(newFolder())} --gradient-groups 4 --schedule constant --products wasm --inject-delay-ms 20`;
const HASH_EVERY = 5;

/** The threads that this process starts, from the first. */
const workers: Worker[] = [];
const onWorker = (worker: Worker) => void workers.push(worker);

beforeEach(() => void process.on('worker', onWorker));
afterEach(() => void process.off('worker', onWorker));

it('goes on to the same weights where threads end, one of which is started again', async () => {
  const entry = await buildCommand();
  const line = `${FLAGS} --elastic --hash-every ${HASH_EVERY} --strategy ddp --transport shm --ranks 3 --max-restarts 1 --steps 100000`;
  const config = await preparedRun(`${line} --out ${join(newFolder(), 'run')}`);
  const wrapUp = new AbortController();
  const events: RankEvent[] = [];
  const notes: string[] = [];
  let look = () => {};
  const job = runElastic(config, {
    entry,
    onEvent: (event) => {
      events.push(event);
      look();
    },
    onNote: (text) => notes.push(text),
    signal: new AbortController().signal,
    wrapUp: wrapUp.signal,
  });
  const of = <Type extends RankEvent['type']>(type: Type) =>
    events.filter((event): event is Extract<RankEvent, { type: Type }> => event.type === type);
  const until = (isThere: () => boolean) =>
    Promise.race([
      job.then(() => expect.unreachable('it ended too early')),
      new Promise<void>((resolve) => {
        look = () => isThere() && resolve();
        look();
      }),
    ]);
  const untilStep = (step: number) => until(() => (of('step').at(-1)?.metrics.step ?? 0) >= step);
  const numLost = () => of('members').reduce((sum, { lost }) => sum + lost, 0);
  /** Waits for two steps of this many ranks, after so many losses. */
  const untilRanks = async (ranks: number, lost: number) => {
    await until(() => of('members').at(-1)?.ranks === ranks && numLost() === lost);
    await untilStep(of('members').at(-1)!.step + 2);
  };
  await until(() => new Set(of('rank').map(({ status }) => status.rank)).size === 3);
  expect(workers).toHaveLength(3); // All of them have done a step.
  await workers[0]!.terminate();
  await untilRanks(3, 1); // It was started again, as one may be.
  await workers[1]!.terminate();
  await untilRanks(2, 2);
  const exits = [workers[2]!, workers[3]!].map((worker) => once(worker, 'exit'));
  wrapUp.abort();
  await job;
  await Promise.all(exits);

  const steps = of('step').map(({ metrics }) => metrics);
  expect(steps.map(({ step }) => step)).toEqual(steps.map((_, i) => i + 1)); // each once
  const reasons = of('members').flatMap((change) => change.reasons);
  expect(reasons).toEqual(['its thread has ended', 'its thread has ended']);
  expect(notes).toEqual([]); // Nobody is told where to join.
  const hashed = steps.findLast(({ hash }) => hash !== undefined)!;
  const alone = `${FLAGS} --strategy single --hash-every ${hashed.step} --steps ${hashed.step}`;
  const undisturbed = await runLine(`${alone} --out ${join(newFolder(), 'alone')}`);
  expect(hashed.hash).toBe(undisturbed.steps.at(-1)!.hash);
}, 100_000);
