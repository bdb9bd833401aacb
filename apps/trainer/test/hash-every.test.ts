// The hashes in a run's record: at which steps, of what, and equal where the weights are.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { type FoundSave, findSaves, pathOf, savesOf } from '../src/files/save-directory.js';
import { runCli } from './support/run-cli.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const tiny = `${tinyFlags(newFolder())} --steps 5`;
let out: string;
beforeEach(() => {
  out = join(newFolder(), 'run');
});

const run = (flags: string, options: Parameters<typeof runLine>[1] = {}) =>
  runLine(`${tiny} ${flags}`, options);
type Run = Awaited<ReturnType<typeof run>>;
const hashesOf = ({ steps }: Run) => steps.map(({ hash }) => hash);

describe('--hash-every', () => {
  it('hashes every so many steps and the last one, beside the numeric class', async () => {
    const found = await run('--strategy single --hash-every 2');
    const told = found.steps.map(({ hash, numericClass }) => [hash?.length, numericClass]);
    const { numericClass } = found.ready[0]!;
    const [none, some] = [
      [undefined, undefined],
      [64, numericClass],
    ];
    expect(told).toEqual([none, some, none, some, some]);
    expect(new Set(hashesOf(found)).size).toBe(4);
  });

  it('changes no step, and is off by default', async () => {
    const [without, hashed] = [await run('--ranks 2'), await run('--ranks 2 --hash-every 1')];
    expect(hashesOf(without).join('')).toBe('');
    const tell = ({ steps }: Run) => steps.map(({ loss, gradNorm }) => [loss, gradNorm]);
    expect(tell(hashed)).toEqual(tell(without));
    const wire = ({ reports }: Run) => reports.map(({ bytesSent }) => bytesSent);
    expect(wire(hashed)).toEqual(wire(without));
  });

  it.each([
    ['--strategy single', '--strategy offload --slices 2'],
    ['--strategy fsdp --ranks 2', '--strategy ddp --ranks 2'],
    ['--strategy fsdp --ranks 3', '--strategy fsdp --ranks 3 --cpu-offload'],
  ])('%s has the hashes of %s', async (one, other) => {
    const [first, second] = [
      await run(`${one} --hash-every 1`),
      await run(`${other} --hash-every 1`),
    ];
    expect(hashesOf(first)).toEqual(hashesOf(second));
    expect(new Set(hashesOf(first)).size).toBe(5);
  });

  it('is in each save, and a run that goes on from there has the same ones', async () => {
    const flags = '--ranks 2 --hash-every 2';
    const whole = await run(`--ranks 2 --hash-every 1 --save-every 3 --out ${out}`);
    const saves = (await findSaves(savesOf(out))) as FoundSave[];
    const hashes = saves.map(({ step, record }) => [step, record.hash]);
    expect(hashes).toEqual([5, 3].map((step) => [step, whole.steps[step - 1]!.hash]));
    const again = `${out}-again`;
    const from = pathOf(savesOf(out), 3);
    const line = `train ${tiny} ${flags} --log-every 100 --resume ${from} --out ${again} --quiet`;
    expect(await runCli(line.split(' '))).toMatchObject({ code: 0 });
    const lines = readFileSync(join(again, 'metrics.jsonl'), 'utf8').trim().split('\n');
    const kept = lines.map((text) => JSON.parse(text) as { step: number; hash?: string });
    expect(kept.map(({ step, hash }) => [step, hash])).toEqual(
      [4, 5].map((step) => [step, whole.steps[step - 1]!.hash]),
    );
  });
});
