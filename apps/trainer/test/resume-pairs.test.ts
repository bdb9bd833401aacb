// A run of any strategy on any number of ranks resumes from a save of any other: 25 pairs in f32,
// with SHARDWEAVE_LONG=1 all 81, and some in 16 bits. What saves hold is f32 in all of them.

import { join } from 'node:path';
import { createMemoryGroup } from '@shardweave/collectives';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { openData } from '../src/data/open-data.js';
import { prepareTokens } from '../src/data/prepare-tokens.js';
import { type FoundSave, readSave } from '../src/files/save-directory.js';
import { TrainingStep } from '../src/rank/step/training-step.js';
import { openRankGroups, openStrategy } from '../src/rank/strategies/open-strategy.js';
import type { PreparedRun } from '../src/run-config.js';
import { loadResumed } from '../src/saves/resume-run.js';
import { parseFlags } from './support/parse-flags.js';
import { worstRatio } from './support/run-flags.js';
import { lossesOf, runLine, tinyFlags } from './support/tiny-run.js';

const NUM_BEFORE = 3;
const NUM_AFTER = 2;

const isLong = process.env.SHARDWEAVE_LONG === '1';
const F32 = [
  'single',
  ...(isLong ? [1, 2, 3, 4] : [2, 3]).map((ranks) => `fsdp --ranks ${ranks}`),
  ...(isLong ? [2, 3, 4] : [3]).map((ranks) => `ddp --ranks ${ranks}`),
  'offload --slices 2',
];
const CASES = [
  { precision: 'fp32', ways: F32, tolerance: 2e-6 },
  {
    precision: 'bf16',
    ways: ['single', 'fsdp --ranks 3', 'ddp --ranks 2', 'offload --slices 2'],
    tolerance: 5e-3,
  },
] as const;

const root = newFolder();

/**
 * Returns the next losses from each save in turn. One run loads them all, and the losses are those
 * of its first rank.
 */
async function goOn(
  flags: string,
  saves: readonly FoundSave[],
  { notes = [], ...made }: { notes?: string[]; fusedProducts?: boolean } = {},
): Promise<number[][]> {
  const asked = await resolveConfig(parseFlags(flags.split(' '), () => {}));
  const config: PreparedRun = { ...asked, tokens: await prepareTokens(asked, { entry: '' }) };
  await using data = await openData(config, config.tokens);
  const backend = await createCpuBackend({ threads: 0, ...made });
  const [losses] = await Promise.all(
    createMemoryGroup(config.ranks).map(async (group, rank) => {
      const device = new Device(backend, { seed: config.seed });
      const groups = await openRankGroups(group);
      const strategy = await openStrategy({ device, config, groups });
      await strategy.initialize();
      const numericClass = await device.numericClass();
      const step = new TrainingStep({ config, rank, device, strategy, data: data.train, group });
      const found: number[][] = [];
      for (const save of saves) {
        const resumed = await loadResumed(
          { saves: [save], notes: [] },
          { config, strategy, group, numericClass },
        );
        const { save: loaded } = resumed;
        notes.push(...resumed.notes);
        step.loadScaler(loaded!.record.scaler);
        const own: number[] = [];
        for (let s = 0; s < NUM_AFTER; s++) {
          own.push((await step.run(loaded!.record.step + s, config.lr)).loss);
        }
        found.push(own);
      }
      strategy.optimizer.dispose();
      await strategy.dispose();
      device.dispose();
      await group.close();
      return found;
    }),
  );
  await backend.dispose();
  return losses!;
}

describe.each(isLong ? CASES : CASES.slice(0, 1))(
  'a resumed run in $precision',
  ({ precision, ways, tolerance }) => {
    const flagsOf = (way: string) =>
      `${tinyFlags(root)} --products wasm --schedule constant --precision ${precision} --strategy ${way}`;
    let saves: FoundSave[];
    let unbroken: number[];
    beforeAll(async () => {
      saves = [];
      for (const [i, way] of ways.entries()) {
        const out = join(root, `${precision}-${i}`);
        await runLine(`${flagsOf(way)} --steps ${NUM_BEFORE} --save-every 99 --out ${out}`);
        saves.push((await readSave(join(out, `saves/step-00000${NUM_BEFORE}`))) as FoundSave);
      }
      const all = await runLine(`${flagsOf(ways[0]!)} --steps ${NUM_BEFORE + NUM_AFTER}`);
      unbroken = lossesOf(all).slice(NUM_BEFORE);
    });

    it('says so where the device rounds otherwise than that of the save', async () => {
      const [way] = ways;
      const told = async (made: { fusedProducts?: boolean }) => {
        const notes: string[] = [];
        await goOn(flagsOf(way), saves.slice(0, 1), { notes, ...made });
        return notes.join();
      };
      expect(await told({})).not.toMatch('computed');
      expect(await told({ fusedProducts: false })).toMatch(
        /^The steps before were computed by cpu .*fused products, .*, and here it is cpu .*plain products, .*: losses differ/,
      );
    });

    it.each(ways)('%s goes on from what each saved', async (way) => {
      const found = await goOn(flagsOf(way), saves);
      expect(found).toHaveLength(ways.length);
      for (const [i, losses] of found.entries()) {
        expect(worstRatio(losses, unbroken), `from ${ways[i]}`).toBeLessThan(tolerance);
      }
      // A wrong state would be noticed: without the saved moments the same steps differ by more.
      expect(new Set(unbroken).size).toBe(NUM_AFTER);
    });
  },
);
