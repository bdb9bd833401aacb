// Which weights a run leaves, those of its best evaluation or of its last step, and what it says of
// them. What is evaluated is so unlike the data that training makes it worse.

import { existsSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { savesOf, stepsIn } from '../src/files/save-directory.js';
import { finalText } from '../src/output/final-text.js';
import { runCli } from './support/run-cli.js';
import type { RunRecord } from './support/run-flags.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const root = newFolder();
let tiny: string;
let valid: string;
beforeAll(() => {
  valid = join(root, 'valid.txt');
  writeFileSync(valid, 'Zq#'.repeat(30));
  const data = join(root, 'data.txt');
  writeFileSync(data, 'the cat sat on a mat, '.repeat(30));
  tiny = `${tinyFlags(root)} --data ${data} --lr 0.02 --schedule constant --warmup 0`;
});

const newOut = () => join(newFolder(), 'run');
const evaluating = () => `${tiny} --valid ${valid} --eval-every 2`;

/** Returns the best evaluation of a run. */
function bestOf({ steps }: RunRecord): { readonly step: number; readonly validLoss: number } {
  const all = steps.map(({ step, validLoss = Number.POSITIVE_INFINITY }) => ({ step, validLoss }));
  return all.reduce((a, b) => (b.validLoss < a.validLoss ? b : a));
}

/** Returns the bytes of the weights under --out. */
function weightsIn(out: string): Buffer {
  const adapter = join(out, 'adapter/adapter_model.safetensors');
  return readFileSync(existsSync(adapter) ? adapter : join(out, 'model/model.safetensors'));
}

/** The weights come out of a save, which these write as the others do. */
const LONG_WAYS: [way: string, saves: readonly number[]][] = [
  ['--strategy offload --slices 2 --save-every 6', [2, 6]],
  ['--strategy fsdp --ranks 2 --cpu-offload', []],
  ['--strategy ddp --ranks 2 --precision bf16', []],
];

describe('--final best', () => {
  const isLong = process.env.SHARDWEAVE_LONG === '1';
  it.each<[way: string, saves: readonly number[]]>([
    ['--strategy single', []],
    ['--strategy fsdp --ranks 2 --save-every 3 --keep 1', [2, 6]],
    ['--strategy fsdp --ranks 2 --lora-rank 2', []],
    ...(isLong ? LONG_WAYS : []),
  ])(
    '%s: leaves the weights of the best evaluation, and the saves that were asked for',
    async (way, saves) => {
      const out = newOut();
      const run = await runLine(`${evaluating()} ${way} --steps 6 --final best --out ${out}`);
      const best = bestOf(run);
      expect(best.step).toBe(2);
      expect(run.final).toEqual({ step: 2, loss: best.validLoss, isEvaluated: true, best });
      const until = newOut();
      await runLine(`${tiny} ${way.replace(/--save.*/, '').trim()} --steps 2 --out ${until}`);
      expect(weightsIn(out).equals(weightsIn(until))).toBe(true);
      expect(await stepsIn(savesOf(out))).toEqual(saves);
    },
  );

  it('leaves no save of its own, though it was killed behind one', async () => {
    const [out, other] = [newOut(), newOut()];
    const line = `${evaluating()} --strategy single --steps 6 --final best`;
    await runLine(`${line} --out ${out}`, { numSteps: 5 });
    expect(stepsIn(savesOf(out))).toEqual([2]);
    await runLine(`${line} --out ${out} --resume auto`);
    expect(existsSync(join(savesOf(out), 'step-000002'))).toBe(false);
    await runLine(`${line} --out ${other}`);
    expect(weightsIn(out).equals(weightsIn(other))).toBe(true);
  });
});

describe('the best evaluation of a run that goes on', () => {
  const ways = '--strategy fsdp --ranks 2';
  let out: string;
  let first: RunRecord;
  beforeAll(async () => {
    out = newOut();
    const flags = `${evaluating()} ${ways} --steps 4 --save-every 4`;
    first = await runLine(`${flags} --out ${out}`);
    expect(first.final).toMatchObject({ step: 4, isEvaluated: true, best: bestOf(first) });
    expect(await stepsIn(savesOf(out))).toEqual([2, 4]);
  });

  it('is taken from the saves of another directory, by another number of ranks', async () => {
    const [more, until] = [newOut(), newOut()];
    const { final } = await runLine(
      `${evaluating()} --ranks 3 --steps 6 --resume ${out}/saves/step-000004 --final best --out ${more}`,
    );
    expect(final).toMatchObject({ step: 2, loss: bestOf(first).validLoss });
    await runLine(`${tiny} ${ways} --steps 2 --out ${until}`);
    expect(weightsIn(more).equals(weightsIn(until))).toBe(true);
  });

  it('is given up with a warning where its save is damaged', async () => {
    const path = join(out, 'saves/step-000002/index.json');
    const index = readFileSync(path);
    truncateSync(path, 50);
    const more = newOut();
    const { final, warnings } = await runLine(
      `${evaluating()} ${ways} --steps 6 --resume ${out}/saves/step-000004 --final best --out ${more}`,
    );
    writeFileSync(path, index);
    expect(final).toMatchObject({ step: 6, isEvaluated: true, best: { step: 2 } });
    expect(warnings).toEqual([
      expect.stringMatching(
        /^The weights of the best evaluation, of step 2, can't be had \(.*index/,
      ),
    ]);
  });

  it('an evaluation of other data begins anew, patience too, and says so', async () => {
    const other = join(root, 'other.txt');
    writeFileSync(other, 'Zq#'.repeat(25));
    const [more, flags] = [newOut(), `${tiny} ${ways} --eval-every 2 --steps 20`];
    const anew = await runLine(
      `${flags} --valid ${other} --patience 2 --resume ${out}/saves/step-000004 --out ${more}`,
    );
    expect(anew.resumed!.notes).toEqual([
      expect.stringContaining(`--valid ${other} (was ${valid})`),
      expect.stringMatching(/^What is evaluated has changed: the best loss .* at step 2, is not/),
    ]);
    const best = bestOf(anew);
    expect(anew.steps.at(-1)!.step).toBe(best.step + 4);
    expect(anew.final).toMatchObject({ step: best.step, best });
    const moved = join(root, 'moved.txt');
    writeFileSync(moved, readFileSync(valid));
    const same = await runLine(
      `${flags} --valid ${moved} --patience 2 --resume ${out}/saves/step-000004`,
    );
    expect(same.steps.at(-1)!.step).toBe(6);
    expect(same.resumed!.notes).toHaveLength(1);
  });
});

describe('the end of a run', () => {
  it('says which weights model/ has, and eval gives their loss', async () => {
    const out = newOut();
    const line = `train ${evaluating()} --strategy single --steps 9 --patience 2 --out ${out}`;
    const { out: said, err } = await runCli(line.split(' '));
    expect(err).toBe('');
    const { final } = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8'));
    expect(final).toMatchObject({ step: 2, isEvaluated: true, best: { step: 2 } });
    const loss = final.loss.toFixed(4);
    expect(said).toContain(
      `\nmodel/ has the weights of step 2, the best of the run: loss ${loss} on ${valid}.\n`,
    );
    const rows = `--data ${valid} --seq 8 --batch 12`;
    const evaluated = await runCli(
      `eval --model ${out}/model ${rows} --device cpu --json`.split(' '),
    );
    expect(JSON.parse(evaluated.out).loss).toBeCloseTo(final.loss, 5);
  });

  it.each([
    [
      { step: 8, loss: 4, isEvaluated: true, best: { step: 2, validLoss: 3.5 } },
      'model/ has the weights of step 8: loss 4.0000 on va.txt. Step 2 had 3.5000: --final best leaves that one.',
    ],
    [
      { step: 8, loss: 2, isEvaluated: false, best: undefined },
      'model/ has the weights of step 8: loss 2.0000 on the rows of the step after it.',
    ],
    [
      { step: 8, loss: undefined, isEvaluated: false, best: undefined },
      'model/ has the weights of step 8.',
    ],
  ])('%j', (final, text) => {
    expect(finalText(final, { lora: undefined, valid: 'va.txt' })).toBe(text);
  });

  it.each([
    [
      '--final best --out x',
      /^--final best, but there is nothing to evaluate on\. Give --valid or/,
    ],
    ['--final last', /^--final is for --out, which is not given\. Use --out, or leave --final out/],
    ['--final first --out x', /^--final: expected one of best, last, got "first"/],
  ])('%s is refused', async (flags, message) => {
    await expect(runLine(`${tiny} ${flags}`)).rejects.toThrow(message);
  });
});
