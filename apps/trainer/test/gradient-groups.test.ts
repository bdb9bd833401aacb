// A run in groups of rows is one run on any number of ranks: its lines, its evaluations and its
// weights, through a resume on another number too.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { resolveProducts } from '../src/launch/resolve-products.js';
import { runCli } from './support/run-cli.js';
import { runLine, tinyFlags, told } from './support/tiny-run.js';

const GROUPED = '--gradient-groups 5 --valid-fraction 0.2 --eval-every 2 --eval-batches 2';

/** Runs in groups; returns what each step told, of its layers too, and the weights' hash. */
async function groupedRun(flags: string, root: string) {
  const out = newFolder();
  const run = await runLine(`${tinyFlags(root)} ${GROUPED} --out ${out} ${flags}`);
  const weights = readFileSync(join(out, 'model/model.safetensors'));
  const layers = run.steps.map(({ groups }) => groups!);
  const hash = createHash('sha256').update(weights).digest('hex');
  return { out, run, told: told(run), layers, hash };
}

describe('a run in groups', () => {
  it('is one run under any strategy that takes groups, on any number of ranks', async () => {
    const root = newFolder();
    const first = await groupedRun('--strategy single --steps 2', root);
    for (const way of ['fsdp --ranks 3', 'ddp --ranks 2']) {
      const other = await groupedRun(`--strategy ${way} --steps 2`, root);
      expect(other.told, way).toEqual(first.told);
      expect(other.hash, way).toBe(first.hash);
      expect(other.layers, way).toEqual(first.layers);
    }
    expect(Object.values(first.layers[0]!).every(({ updateRatio }) => updateRatio! > 0)).toBe(true);
    expect(first.told.filter(({ validLoss }) => validLoss !== undefined)).toHaveLength(1);
  });

  it('is verified on another number of ranks, and each of its rows is computed alone', async () => {
    const [root, out] = [newFolder(), newFolder()];
    const flags = `--cache ${root}/cache --quiet --strategy single --steps 2 --hash-every 1`;
    const line = `train ${tinyFlags(root)} ${GROUPED} ${flags} --out ${out}`;
    expect(await runCli(line.split(' '))).toMatchObject({ code: 0 });
    const verified = await runCli(['verify', out, '--ranks', '3']);
    expect(verified.err).toBe('');
    expect(verified.out).toContain('2 of 2 steps equal');
    expect(verified.out).toContain('2 hashes');
    const refused = await runCli(['verify', out, '--ranks', '6']);
    expect([verified.code, refused.code]).toEqual([0, 2]);
    expect(refused.err).toContain('the run has --gradient-groups 5, so at most as many ranks.');
    const replayed = await runCli(['replay', out, '--step', '2', '--rows', '--json']);
    const { rows, metrics } = JSON.parse(replayed.out) as {
      rows: { loss: number; targets: number; gradNorm: number }[];
      metrics: { loss: number; targets: number };
    };
    const sum = rows.reduce((total, { loss, targets }) => total + loss * targets, 0);
    expect(rows.every(({ gradNorm }) => gradNorm > 0)).toBe(true);
    expect(sum / metrics.targets).toBeCloseTo(metrics.loss, 5);
  });

  it('goes on from a save on another number of ranks', async () => {
    const root = newFolder();
    const precision = '--precision bf16 --schedule constant';
    const whole = await groupedRun(`--strategy fsdp --ranks 2 --steps 4 ${precision}`, root);
    const out = newFolder();
    const line = `${tinyFlags(root)} ${GROUPED} ${precision} --strategy fsdp --out ${out}`;
    await runLine(`${line} --ranks 3 --steps 2 --save-every 2`);
    const again = await runLine(`${line} --ranks 4 --steps 4 --resume auto`);
    expect(again.resumed?.notes).toEqual(['Other than in the save: --steps 4 (was 2).']);
    expect(told(again)).toEqual(whole.told.slice(2));
    expect(readFileSync(join(out, 'model/model.safetensors'))).toEqual(
      readFileSync(join(whole.out, 'model/model.safetensors')),
    );
    await expect(
      runLine(`${line.replace('groups 5', 'groups 4')} --ranks 2 --steps 4 --resume auto`),
    ).rejects.toThrow(/another --gradient-groups: 5, got 4/);
  });
});

describe('--gradient-groups refuses', () => {
  it.each([
    ['--gradient-groups 13', /--gradient-groups 13 of --batch 12 rows: each has one at least/],
    ['--gradient-groups 4 --grad-accum 2', /and --grad-accum 2 both cut a step/],
    ['--gradient-groups 4 --products native', /--products native has those of this one/],
    ['--gradient-groups 4 --strategy offload', /single, fsdp or ddp, got offload/],
    ['--gradient-groups 4 --task embed --data x.jsonl', /--task embed: .* with each other alone/],
  ])('%s', async (flags, message) => {
    await expect(runLine(`${tinyFlags(newFolder())} ${flags}`)).rejects.toThrow(message);
  });

  it('a library of the machine, where auto would take one', async () => {
    const asked = { products: 'auto', device: ['cpu'], transport: 'memory' } as const;
    const find = (async () => ({ name: 'a library' })) as never;
    const given = { ...asked, resume: undefined, out: undefined };
    expect(await resolveProducts(given, { env: {}, find })).toBe('native');
    expect(await resolveProducts({ ...given, gradientGroups: 4 }, { env: {}, find })).toBe('wasm');
  });
});
