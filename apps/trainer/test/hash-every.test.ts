// The hashes in a run's record: at which steps, of what, and equal where the weights are.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { type FoundSave, findSaves, pathOf, savesOf } from '../src/files/save-directory.js';
import { runCli } from './support/run-cli.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const tiny = `${tinyFlags(newFolder())} --steps 5`;
const run = (flags: string) => runLine(`${tiny} ${flags}`);
type Run = Awaited<ReturnType<typeof run>>;
const hashesOf = ({ steps }: Run) => steps.map(({ hash }) => hash);

describe('--hash-every', () => {
  const out = join(newFolder(), 'run');
  let whole: Run;
  beforeAll(async () => {
    whole = await run(`--ranks 2 --hash-every 1 --save-every 3 --out ${out}`);
  });

  it('hashes every so many steps and the last one, beside the numeric class', async () => {
    const found = await run('--ranks 2 --hash-every 2');
    const [, second, , fourth, fifth] = hashesOf(whole);
    expect(hashesOf(found)).toEqual([undefined, second, undefined, fourth, fifth]);
    const { numericClass } = found.ready[0]!;
    const told = found.steps.map((step) => step.numericClass);
    expect(told).toEqual([undefined, numericClass, undefined, numericClass, numericClass]);
    expect(new Set(hashesOf(whole)).size).toBe(5);
    expect(fifth).toMatch(/^[0-9a-f]{64}$/);
  });

  it('changes no step and no count of bytes, and is off by default', async () => {
    const without = await run('--ranks 2');
    expect(hashesOf(without).join('')).toBe('');
    const tell = ({ steps }: Run) => steps.map(({ loss, gradNorm }) => [loss, gradNorm]);
    expect(tell(whole)).toEqual(tell(without));
    const wire = ({ reports }: Run) => reports.map(({ bytesSent }) => bytesSent);
    expect(wire(whole)).toEqual(wire(without));
  });

  it('has the same hashes with other strategies, where those have the same bits', async () => {
    expect(hashesOf(await run('--strategy ddp --ranks 2 --hash-every 1'))).toEqual(hashesOf(whole));
  });

  it('is in each save, and a run that goes on from there has the same ones', async () => {
    const saves = (await findSaves(savesOf(out))) as FoundSave[];
    const hashes = saves.map(({ step, record }) => [step, record.hash]);
    expect(hashes).toEqual([5, 3].map((step) => [step, whole.steps[step - 1]!.hash]));
    const again = `${out}-again`;
    const from = pathOf(savesOf(out), 3);
    const line = `train ${tiny} --ranks 2 --hash-every 2 --log-every 100 --resume ${from} --out ${again} --quiet`;
    expect(await runCli(line.split(' '))).toMatchObject({ code: 0 });
    const lines = readFileSync(join(again, 'metrics.jsonl'), 'utf8').trim().split('\n');
    const kept = lines.map((text) => JSON.parse(text) as { step: number; hash?: string });
    expect(kept.map(({ step, hash }) => [step, hash])).toEqual(
      [4, 5].map((step) => [step, whole.steps[step - 1]!.hash]),
    );
  });
});
