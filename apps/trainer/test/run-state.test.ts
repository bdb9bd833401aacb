// What --out holds of a run decides what a command does with it. A command line with --resume auto
// works whatever its run has come to, and no file of another program is lost.

import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeEach, describe, expect, it } from 'vitest';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import { stateOf } from '../src/saves/run-state.js';
import { runCli } from './support/run-cli.js';
import { tinyFlags } from './support/tiny-run.js';

const root = mkdtempSync(join(tmpdir(), 'run-state-'));
afterAll(() => rmSync(root, { recursive: true }));
let out: string;
beforeEach(() => {
  out = join(mkdtempSync(join(root, 'case-')), 'run');
});

const run = (more: string, options: Parameters<typeof runCli>[1] = {}) =>
  runCli(
    `train ${tinyFlags(root)} --strategy single --quiet --steps 3 ${more}`.split(' '),
    options,
  );
const allFiles = (directory: string) =>
  readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name))
    .sort();
const contents = (directory: string) =>
  allFiles(directory).map((file) => [file, statSync(file).mtimeMs, readFileSync(file, 'latin1')]);
const modelOf = (directory: string) => readFileSync(join(directory, 'model/model.safetensors'));
const stepsOf = (directory: string) =>
  readFileSync(join(directory, 'metrics.jsonl'), 'utf8')
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as { readonly step: number }).step);

describe('a run', () => {
  it.each([
    ['', false],
    [' --save-every 2', true],
  ])(
    'that is done with "%s" is left as it is by its line with --resume auto',
    async (more, hasSaves) => {
      const line = `--out ${out}${more}`;
      expect((await run(line)).code).toBe(0);
      expect(stateOf(out)).toEqual({
        is: 'done',
        end: { step: 3, steps: 3, why: 'done' },
        hasSaves,
      });
      const before = contents(out);
      const again = await runCli(
        `train ${tinyFlags(root)} --strategy single --steps 3 ${line} --resume auto`.split(' '),
      );
      expect([again.code, again.err]).toEqual([0, '']);
      expect(again.out).toMatch(
        /^The run in .*run is done after step 3 of 3: nothing is left to train\. .*\n$/,
      );
      expect(contents(out)).toEqual(before);
      expect((await run(line)).err).toMatch(
        hasSaves
          ? /already holds a run with saves.*--resume auto/
          : /already holds a run that is done/,
      );
    },
  );

  it('that is done trains on from its saves, and without them is not lost to a start', async () => {
    expect((await run(`--out ${out} --save-every 2`)).code).toBe(0);
    expect((await run(`--out ${out} --save-every 2 --steps 5 --resume auto`)).code).toBe(0);
    expect(stepsOf(out)).toEqual([1, 2, 3, 4, 5]);
    expect(stateOf(out)).toMatchObject({ is: 'done', end: { step: 5 } });
    rmSync(join(out, 'saves'), { recursive: true });
    const before = contents(out);
    const more = await run(`--out ${out} --steps 7 --resume auto`);
    expect([more.code, more.err]).toEqual([
      2,
      expect.stringMatching(/a run that is done, and no save to go on from\. Choose another/),
    ]);
    expect(contents(out)).toEqual(before);
  });

  it('that ran out of patience is done, and stays so where its results are lost', async () => {
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
    expect(modelOf(out).equals(model)).toBe(true);
  });

  it('that ended before its first save begins anew by --resume auto, and by nothing else', async () => {
    const whole = `${out}-whole`;
    await run(`--out ${whole}`);
    const interrupt = new Interrupt({ exit: () => {} });
    const ended = await runCli(
      `train ${tinyFlags(root)} --strategy single --steps 3 --out ${out}`.split(' '),
      {
        interrupt,
        onOut: (text) => {
          if (text.startsWith('step 2/')) {
            interrupt.ask(new SignalError('SIGTERM'));
          }
        },
      },
    );
    expect(ended.code).not.toBe(0);
    expect(stateOf(out)).toEqual({ is: 'begun' });
    const before = contents(out);
    expect((await run(`--out ${out}`)).err).toMatch(
      /already holds a run that ended before its first save\. Begin it anew with --resume auto/,
    );
    expect(contents(out)).toEqual(before);
    expect((await run(`--out ${out} --resume auto`)).code).toBe(0);
    expect(stepsOf(out)).toEqual([1, 2, 3]);
    expect(modelOf(out).equals(modelOf(whole))).toBe(true);
  });

  it('that was taken back to an earlier save is not done until it is again', async () => {
    const line = `--out ${out} --save-every 1 --keep 9`;
    await run(line);
    const interrupt = new Interrupt({ exit: () => {} });
    const goOn = `train ${tinyFlags(root)} --strategy single --steps 3 ${line} --resume`;
    await runCli(`${goOn} ${out}/saves/step-000001`.split(' '), {
      interrupt,
      onOut: (text) => {
        if (text.startsWith('step 2/')) {
          interrupt.ask(new SignalError('SIGTERM'));
        }
      },
    });
    expect(stateOf(out).is).toBe('saved');
    expect((await run(`${line} --resume auto`)).code).toBe(0);
    expect(stateOf(out)).toMatchObject({ is: 'done', end: { step: 3 } });
  });

  it.each([
    ['with its saves', ' --save-every 2', ['step-000002', 'step-000003']],
    ['without saves', '', undefined],
  ])('leaves nothing empty %s', async (_, more, saves) => {
    await run(`--out ${out}${more}`);
    const left = [
      ...['config.yaml', 'events.jsonl', 'loss.svg', 'metrics.jsonl', 'model', 'report.html'],
      ...(saves === undefined ? [] : ['saves']),
      'summary.json',
    ];
    expect(readdirSync(out).sort()).toEqual(left);
    expect(saves && readdirSync(join(out, 'saves')).sort()).toEqual(saves);
  });

  it('that fails before it writes anything leaves no --out', async () => {
    const { code } = await run(`--out ${out} --save-every 2 --resume ${root}/nowhere`);
    expect(code).not.toBe(0);
    expect(existsSync(out)).toBe(false);
  });
});

describe('--resume DIR', () => {
  it('without --out goes on from its newest save, and writes nothing', async () => {
    await run(`--out ${out} --save-every 2`);
    const before = contents(out);
    const line = `train ${tinyFlags(root)} --strategy single --steps 5 --resume ${out}`;
    const result = await runCli(line.split(' '));
    expect([result.code, result.err]).toEqual([0, '']);
    expect(result.out).toMatch(/^Going on from .*step-000003, behind step 3\.$/m);
    expect(result.out).toMatch(/^step +5\/5/m);
    expect(contents(out)).toEqual(before);
  });

  it('with another --out begins there with no steps of its own, again where it was killed', async () => {
    await run(`--out ${out} --save-every 2`);
    const line = `--steps 5 --resume ${out} --out ${out}-more`;
    await run(line);
    expect(stepsOf(`${out}-more`)).toEqual([4, 5]);
    const model = modelOf(`${out}-more`);
    rmSync(join(`${out}-more`, 'summary.json'));
    expect((await run(line)).code).toBe(0);
    expect(stepsOf(`${out}-more`)).toEqual([4, 5]);
    expect(modelOf(`${out}-more`).equals(model)).toBe(true);
  });

  it('of a run without saves says that there are none', async () => {
    await run(`--out ${out}`);
    expect((await run(`--resume ${out}`)).err).toMatch(/--resume: .*run holds no save\. Give/);
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
      expect([code, err]).toEqual([
        2,
        expect.stringMatching(/already holds .*, which no run has left there\. Choose another/),
      ]);
      expect(contents(out)).toEqual(before);
    }
  });

  it('of names that no run uses stay beside it', async () => {
    mkdirSync(join(out, 'saves'), { recursive: true });
    writeFileSync(join(out, 'notes.txt'), 'mine');
    writeFileSync(join(out, 'saves/game.sav'), 'mine');
    expect((await run(`--out ${out} --save-every 2`)).code).toBe(0);
    for (const name of ['notes.txt', 'saves/game.sav']) {
      expect(readFileSync(join(out, name), 'utf8')).toBe('mine');
    }
  });
});
