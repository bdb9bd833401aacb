// A dry run finds to the byte what the run takes. Random configurations are compared with the
// ledgers and counters of runs over memory: 30 of them in the long run, 15 in the short one.

import { readdirSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { cpuInfo } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose } from '../../../tooling/test-kit/closeness.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveConfig } from '../src/config/resolve-config.js';
import { dryRun } from '../src/plan/dry-run.js';
import type { RankReport } from '../src/rank/events.js';
import { splitMix32 } from '../src/seeded-random.js';
import { parseFlags } from './support/parse-flags.js';
import { ROOT, type RunRecord, referenceCase, runFlags } from './support/run-flags.js';

const STEPS = 3;
/** Stands for a directory that each run has for itself. */
const DISK = 'DIR';
const FAMILIES = ['tiny', 'llama'] as const;
const MODELS = {
  tiny: ['--model', `${ROOT}tooling/reference/data/tiny`],
  llama: flagOf(referenceCase('llama-fp32').flags, '--model'),
};
const DATA = ['--data', `${ROOT}tooling/reference/data/tiny/text.txt`, '--tokenizer', 'byte'];
function flagOf(flags: readonly string[], name: string): string[] {
  return flags.slice(flags.indexOf(name), flags.indexOf(name) + 2);
}

/**
 * Draws one of the 30 configurations. Strategies take turns, and the seed decides everything else.
 */
function draw(index: number): string[] {
  const next = splitMix32(16, index);
  const pick = <T>(...of: readonly T[]): T => of[Math.floor((next() / 2 ** 32) * of.length)]!;
  const strategy = (['single', 'fsdp', 'ddp', 'offload', 'fsdp'] as const)[index % 5]!;
  const family = FAMILIES[Math.floor(index / 5) % 2]!;
  const isSharded = strategy === 'fsdp' || strategy === 'ddp';
  const flags = [
    '--device cpu --quiet --threads 1',
    `--strategy ${strategy} --ranks ${isSharded ? pick(1, 2, 3, 4) : 1}`,
    `--steps ${STEPS} --seq ${pick(8, 16)} --batch ${pick(4, 5, 8)}`,
    `--precision ${pick('fp32', 'bf16', 'fp16')}`,
    `--clip ${pick('0', '0.001')}`,
    pick('', '--grad-accum 2', '--grad-accum 3 --no-sync'),
    pick('', '', '--checkpoint-activations'),
    pick('', '', '--lora-rank 4'),
    strategy === 'fsdp'
      ? pick('', '--no-reshard', '--cpu-offload', '--fp32-reduce', `--offload-dir ${DISK}`)
      : '',
    strategy === 'offload'
      ? pick(
          '--slices 2',
          '--micro-batches 2',
          family === 'tiny' ? '--device-budget 1200000' : '--device-budget 300000',
        )
      : '',
    strategy === 'offload' && index % 2 === 0 ? `--offload-dir ${DISK}` : '',
  ];
  return [...MODELS[family], ...DATA, ...flags.join(' ').split(' ').filter(Boolean)];
}

async function plannedRank(flags: readonly string[], rank: number) {
  const config = await resolveConfig(parseFlags([...flags], () => {}));
  return dryRun(config, { rank, model: { info: cpuInfo({ threads: 1 }) } });
}

async function expectEqual(flags: readonly string[], reports: readonly RankReport[]) {
  for (const { rank, peakBytes, hostBytes, diskBytes, ...report } of reports) {
    const { device: _, description: __, ...counts } = report;
    const planned = await plannedRank(flags, rank);
    expect({ rank, ...planned.peakBytes }).toEqual({ rank, ...peakBytes });
    expect({ rank, host: planned.hostBytes, disk: planned.diskBytes }).toEqual({
      ...{ rank, host: hostBytes, disk: diskBytes },
    });
    const { firstStep, laterStep } = planned;
    const names = Object.keys(counts) as (keyof typeof firstStep)[];
    const total = names.map((name) => [name, firstStep[name] + (STEPS - 1) * laterStep[name]]);
    expect({ rank, ...Object.fromEntries(total) }).toEqual({ rank, ...counts });
  }
}

/** Returns the bytes of all values in the files of a directory and of those below it. */
function valueBytes(directory: string): number {
  const files = readdirSync(directory, { recursive: true, withFileTypes: true });
  return files
    .filter(({ name }) => /^shardweave-\d+\.\d$/.test(name))
    .reduce((sum, { parentPath, name }) => sum + statSync(join(parentPath, name)).size, 0);
}

const NUM_DRAWN = process.env.SHARDWEAVE_LONG === '1' ? 30 : 15;

describe('bytes by tag, on the wire and at rest', () => {
  it.each(Array.from({ length: NUM_DRAWN }, (_, i) => [draw(i).slice(6).join(' '), i] as const))(
    '%s',
    async (_, index) => {
      const directory = newFolder();
      const flags = draw(index).map((flag) => (flag === DISK ? directory : flag));
      const { reports } = await runFlags(flags);
      await expectEqual(flags, reports);
      const onDisk = reports.reduce((sum, { diskBytes }) => sum + diskBytes, 0);
      expect(valueBytes(directory)).toBe(onDisk);
      expect(onDisk > 0).toBe(flags.includes(directory));
    },
  );

  it('are of all three, in several of them', () => {
    const drawn = Array.from({ length: 30 }, (_, index) => draw(index).join(' '));
    const count = (flags: RegExp) => drawn.filter((line) => flags.test(line)).length;
    expect(count(/--offload-dir/)).toBeGreaterThan(3);
    expect(count(/--cpu-offload|--strategy offload(?!.*-dir)/)).toBeGreaterThan(3);
    expect(count(/ddp.*--precision (bf|fp)16/)).toBeGreaterThan(1);
  });
});

/** A decoder without weights whose vocabulary is larger than any step: ranks share its table. */
function modelOfManyWords(): string {
  const config = {
    ...{ model_type: 'llama', vocab_size: 1003, hidden_size: 128, num_hidden_layers: 1 },
    ...{ num_attention_heads: 2, num_key_value_heads: 1, intermediate_size: 64 },
    ...{ max_position_embeddings: 32, tie_word_embeddings: true },
  };
  const directory = newFolder();
  writeFileSync(join(directory, 'config.json'), JSON.stringify(config));
  return directory;
}

it.each([
  ['fp32', 2e-6],
  ['bf16', 2e-3],
] as const)('a token table in parts, %s: bytes, and losses of one process', async (dtype, most) => {
  const flags = [
    ...['--model', modelOfManyWords(), ...DATA, '--device', 'cpu', '--quiet', '--threads', '1'],
    ...['--steps', `${STEPS}`, '--seq', '8', '--batch', '6', '--lora-rank', '4', '--lr', '0.01'],
    ...['--precision', dtype, '--products', 'wasm'],
  ];
  const alone = await runFlags([...flags, '--strategy', 'single']);
  const sharded = [...flags, '--strategy', 'fsdp', '--ranks', '3'];
  const { steps, reports } = await runFlags(sharded);
  await expectEqual(sharded, reports);
  const tableBytes = (dtype === 'fp32' ? 4 : 2) * 1003 * 128;
  expect(Math.max(...reports.map(({ peakBytes }) => peakBytes.gathered))).toBeLessThan(tableBytes);
  const losses = (run: Pick<RunRecord, 'steps'>) => run.steps.map(({ loss }) => loss);
  expectClose(losses({ steps }), losses(alone), most);
});
