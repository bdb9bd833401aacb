// Attacks by strangers cost a job next to nothing, both while it forms and while it trains. The job
// forms under the two most expensive attacks (the long run takes each) and steps on under every
// one. The times are printed but decide nothing, since the attackers share the machine with the
// job.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AttackedJob } from './support/attacked-job.js';
import { ATTACKS, begin } from './support/attacks.js';
import { bundleProgram } from './support/bundle-program.js';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const MIB = 2 ** 20;
/** An undisturbed rank 0 needed 62 to 70 MiB of memory while the job formed. */
const CALM_BYTES = 70 * MIB;
const MAX_EXTRA_BYTES = 150 * MIB;
/** Each attack lasts at least this long, and at least as many steps. */
const ATTACK_MS = isLong ? 3000 : 150;
const NUM_STEPS = 3;

let folder = '';
let program = '';

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'attacked-'));
  program = join(folder, 'attacked-rank.mjs');
  await bundleProgram(new URL('support/attacked-rank.ts', import.meta.url), program);
});

afterAll(() => rm(folder, { recursive: true, force: true }));

/** Prints figures for a person who reads the run. */
function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

/**
 * Measures what rank 0 costs until it has done some more steps. A job that stands still never gets
 * there, and the test times out.
 */
async function attacked(job: AttackedJob) {
  const { numSteps: before, numRefused } = await job.costs();
  let costs = await job.costs();
  let maxResidentBytes = 0;
  let longestTurnMs = 0;
  const start = performance.now();
  while (costs.numSteps < before + NUM_STEPS || performance.now() - start < ATTACK_MS) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    costs = await job.costs();
    maxResidentBytes = Math.max(maxResidentBytes, costs.maxResidentBytes);
    longestTurnMs = Math.max(longestTurnMs, costs.longestTurnMs);
  }
  const numNew = { numSteps: costs.numSteps - before, numRefused: costs.numRefused - numRefused };
  return { ...costs, ...numNew, maxResidentBytes, longestTurnMs };
}

function describeCosts(costs: Awaited<ReturnType<typeof attacked>>, calm: typeof costs): string {
  const extra = (costs.maxResidentBytes - calm.maxResidentBytes) / MIB;
  return `${costs.numSteps} steps, ${extra.toFixed(0)} MiB above calm, longest turn ${costs.longestTurnMs.toFixed(0)} ms, ${costs.numRefused} refused`;
}

const WORST = [
  'idle connections, 400 and then 15 a second',
  'messages without end behind a refusal, 8 connections',
  'pings whose answers nobody reads, 8 connections',
  'messages of 2 MiB by who says an allowed origin',
];

describe('a job that forms', () => {
  it.each(isLong ? Object.keys(ATTACKS) : WORST)('under %s', async (name) => {
    await using job = await AttackedJob.begin(program);
    const end = begin(ATTACKS[name]!, job.port);
    const { formMs, costs } = await job.form();
    end();
    expect(costs.maxResidentBytes).toBeLessThan(CALM_BYTES + MAX_EXTRA_BYTES);
    const residentMiB = (costs.maxResidentBytes / MIB).toFixed(0);
    print(
      `${name}: formed in ${formMs.toFixed(0)} ms, longest turn ${costs.longestTurnMs.toFixed(0)} ms, ${costs.numRefused} refused, rank 0 at ${residentMiB} MiB`,
    );
    await job.end();
  });
});

describe('a job that trains', () => {
  it('steps on under each attack on the port at which it met', { timeout: 120_000 }, async () => {
    await using job = await AttackedJob.begin(program);
    await job.form();
    const calm = await attacked(job);
    const seen = [`calm: ${describeCosts(calm, calm)}`];
    for (const [name, attack] of Object.entries(ATTACKS)) {
      const end = begin(attack, job.port);
      const costs = await attacked(job);
      end();
      seen.push(`${name}: ${describeCosts(costs, calm)}`);
      expect(costs.maxResidentBytes - calm.maxResidentBytes, name).toBeLessThan(MAX_EXTRA_BYTES);
    }
    print(seen.join('\n'));
    await job.end();
  });
});
