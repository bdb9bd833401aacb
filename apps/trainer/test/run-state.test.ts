// What --out holds of a run decides what a command does with it. A command line with --resume auto
// works whatever its run has come to, and no file of another program is lost.

import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { stateOf } from '../src/saves/run-state.js';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = newFolder();
const [plain, saved] = [join(root, 'plain'), join(root, 'saved')];
const FOREIGN = ['notes.txt', 'saves/game.sav'];

let out: string;
beforeAll(async () => {
  mkdirSync(join(saved, 'saves'), { recursive: true });
  for (const name of FOREIGN) {
    writeFileSync(join(saved, name), 'mine');
  }
  expect((await run(`--out ${plain}`)).code).toBe(0);
  expect((await run(`--out ${saved} --save-every 2`)).code).toBe(0);
});
beforeEach(() => {
  out = join(newFolder(), 'run');
});
/** Makes --out a copy of a run that is done. */
const copy = (from: string) => cpSync(from, out, { recursive: true, preserveTimestamps: true });

type Options = Parameters<typeof runCli>[1];
/** Runs three steps, unless `more` says otherwise, and shows them. */
const show = (more: string, options: Options = {}) =>
  runCli(`train ${tinyFlags(root)} --strategy single --steps 3 ${more}`.split(' '), options);
const run = (more: string) => show(`--quiet ${more}`);
/** Ends a run as soon as it has told of a step. */
function runToStep(last: number, more: string) {
  const interrupt = new Interrupt({ exit: () => {} });
  const onOut = (text: string) => {
    if (text.startsWith(`step ${last}/`)) {
      interrupt.ask(new SignalError('SIGTERM'));
    }
  };
  return show(more, { interrupt, onOut });
}
const contents = (directory: string) =>
  readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name))
    .sort()
    .map((file) => [file, statSync(file).mtimeMs, readFileSync(file, 'latin1')]);
const modelOf = (directory: string) =>
  readFileSync(join(directory, 'model/model.safetensors'), 'latin1');
const stepsOf = (directory: string) =>
  readFileSync(join(directory, 'metrics.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as { readonly step: number }).step);

describe('a run', () => {
  it.each([
    ['without saves', plain, '', false, /already holds a run that is done\. Choose another/],
    ['with saves', saved, ' --save-every 2', true, /already holds a run with saves\..*auto, or/],
  ])(
    'a run %s that is done is left as it is by its line with --resume auto',
    async (_, from, more, hasSaves, says) => {
      copy(from);
      const line = `--out ${out}${more}`;
      expect(stateOf(out)).toEqual({
        is: 'done',
        end: { step: 3, steps: 3, why: 'done' },
        hasSaves,
      });
      const before = contents(out);
      const again = await show(`${line} --resume auto`);
      expect([again.code, again.err]).toEqual([0, '']);
      expect(again.out).toMatch(
        /^The run in .*run is done after step 3 of 3: nothing is left to train\. .*\n$/,
      );
      expect((await run(line)).err).toMatch(says);
      expect(contents(out)).toEqual(before);
    },
  );

  it('a run that leaves adapters is done as well', async () => {
    const line = `--out ${out} --lora-rank 2`;
    expect((await run(line)).code).toBe(0);
    expect(stateOf(out)).toMatchObject({ is: 'done', end: { step: 3 } });
    expect((await show(`${line} --resume auto`)).out).toMatch(/run is done after step 3 of 3/);
  });

  it('a run that is done trains on from its saves, and without them is not lost to a start', async () => {
    copy(saved);
    expect((await run(`--out ${out} --save-every 2 --steps 5 --resume auto`)).code).toBe(0);
    expect(stepsOf(out)).toEqual([1, 2, 3, 4, 5]);
    expect(stateOf(out)).toMatchObject({ is: 'done', end: { step: 5 } });
    rmSync(join(out, 'saves'), { recursive: true });
    const before = contents(out);
    const { code, err } = await run(`--out ${out} --steps 7 --resume auto`);
    expect(err).toMatch(/a run that is done, and no save to go on from\. Choose another/);
    expect(code).toBe(2);
    expect(contents(out)).toEqual(before);
  });

  it('a run that ran out of patience is done, and stays so where its results are lost', async () => {
    const line = `--out ${out} --save-every 2 --steps 9 --valid-fraction 0.2 --eval-every 1 --patience 1 --lr 9 --clip 0`;
    expect((await run(line)).code).toBe(0);
    const last = stepsOf(out).length;
    expect(last).toBeLessThan(9);
    expect(stateOf(out)).toMatchObject({ is: 'done', end: { step: last, why: 'patience' } });
    const model = modelOf(out);
    const before = contents(out);
    expect((await run(`${line} --resume auto`)).code).toBe(0);
    expect(contents(out)).toEqual(before);
    // A kill leaves that between the last save and the results.
    rmSync(join(out, 'summary.json'));
    rmSync(join(out, 'model'), { recursive: true });
    expect((await run(`${line} --resume auto`)).code).toBe(0);
    expect(stepsOf(out)).toHaveLength(last);
    expect(modelOf(out)).toBe(model);
  });

  it('a run that ended before its first save begins anew by --resume auto, and by nothing else', async () => {
    expect((await runToStep(2, `--out ${out}`)).code).not.toBe(0);
    expect(stateOf(out)).toEqual({ is: 'saved', step: 2 });
    rmSync(join(out, 'saves'), { recursive: true }); // as where it was killed
    expect(stateOf(out)).toEqual({ is: 'begun' });
    const before = contents(out);
    expect((await run(`--out ${out}`)).err).toMatch(
      /already holds a run that ended before its first save\. Begin it anew with --resume auto/,
    );
    expect(contents(out)).toEqual(before);
    expect((await run(`--out ${out} --resume auto`)).code).toBe(0);
    expect(stepsOf(out)).toEqual([1, 2, 3]);
    expect(modelOf(out)).toBe(modelOf(plain));
  });

  it('a run that was taken back to an earlier save is not done until it is again', async () => {
    copy(saved);
    const line = `--out ${out} --save-every 2 --steps 5`;
    const ended = await runToStep(3, `${line} --resume ${out}/saves/step-000002`);
    expect(ended.code).toBe(143);
    expect(stateOf(out).is).toBe('saved');
    expect((await run(`${line} --resume auto`)).code).toBe(0);
    expect(stateOf(out)).toMatchObject({ is: 'done', end: { step: 5 } });
  });

  it('leaves nothing empty, and other files where they are', () => {
    const left = ['config.yaml', 'events.jsonl', 'loss.svg', 'metrics.jsonl', 'model'];
    const rest = ['report.html', 'summary.json'];
    expect(readdirSync(plain).sort()).toEqual([...left, ...rest]);
    expect(readdirSync(saved).sort()).toEqual([
      ...left,
      'notes.txt',
      'report.html',
      'saves',
      'summary.json',
    ]);
    expect(readdirSync(join(saved, 'saves')).sort()).toEqual([
      'game.sav',
      'step-000002',
      'step-000003',
    ]);
    for (const name of FOREIGN) {
      expect(readFileSync(join(saved, name), 'utf8')).toBe('mine');
    }
  });

  it('a run that fails before it writes anything leaves no --out', async () => {
    const { code } = await run(`--out ${out} --save-every 2 --resume ${root}/nowhere`);
    expect(code).not.toBe(0);
    expect(existsSync(out)).toBe(false);
  });
});

describe('--resume DIR', () => {
  it('a run without --out goes on from its newest save, and writes nothing', async () => {
    const before = contents(saved);
    const result = await show(`--steps 5 --resume ${saved}`);
    expect([result.code, result.err]).toEqual([0, '']);
    expect(result.out).toMatch(/^Going on from .*step-000003, behind step 3\.$/m);
    expect(result.out).toMatch(/^step +5\/5/m);
    expect(contents(saved)).toEqual(before);
  });

  it('a run with another --out begins there with no steps of its own, again where it was killed', async () => {
    const line = `--steps 5 --resume ${saved} --out ${out}`;
    await run(line);
    expect(stepsOf(out)).toEqual([4, 5]);
    const model = modelOf(out);
    rmSync(join(out, 'summary.json'));
    expect((await run(line)).code).toBe(0);
    expect(stepsOf(out)).toEqual([4, 5]);
    expect(modelOf(out)).toBe(model);
  });

  it('a run without saves says that there are none', async () => {
    expect((await run(`--resume ${plain}`)).err).toMatch(/--resume: .*plain holds no save\. Give/);
  });
});

describe("another program's files", () => {
  it.each([
    ['config.yaml', undefined],
    ['model/model.safetensors', undefined],
    ['report.html', 'events.jsonl'],
  ])('%s is kept, with and without --resume auto', async (name, other) => {
    mkdirSync(join(out, name, '..'), { recursive: true });
    for (const file of [name, ...(other === undefined ? [] : [other])]) {
      writeFileSync(join(out, file), 'mine');
    }
    const before = contents(out);
    for (const more of ['', ' --save-every 1 --resume auto']) {
      const { code, err } = await run(`--out ${out}${more}`);
      expect(err).toMatch(/already holds .*, which no run has left there\. Choose another/);
      expect(code).toBe(2);
      expect(contents(out)).toEqual(before);
    }
  });
});
