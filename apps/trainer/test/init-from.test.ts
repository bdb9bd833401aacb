// --init-from: a new run begins with the weights of a save, a run or a model, and with nothing else
// of whoever made them.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { UsageError } from '../src/errors.js';
import { lossesOf, runLine, tinyFlags } from './support/tiny-run.js';

const folder = newFolder();
const shape = newFolder();
const WITH_MODEL = tinyFlags(shape).replace('--warmup 2', '--schedule constant --products wasm');
/** The flags without --model. */
const FLAGS = WITH_MODEL.replace(/--model \S+ /, '');
const run = join(folder, 'run');
const OTHER = join(folder, 'other.txt');
writeFileSync(OTHER, 'Another text, of which nobody has heard until now. '.repeat(9));
/** A run of its own, on other data and by another seed. */
const AGAIN = `--data ${OTHER} --seed 5 --dropout 0.2 --lr 0.01 --steps 3`;
const ADAPTERS = '--lora-rank 2 --lora-targets c_attn,c_fc';
const tuned = join(folder, 'tuned');

const losses = async (flags: string) => lossesOf(await runLine(flags));

beforeAll(async () => {
  await runLine(`${WITH_MODEL} --strategy fsdp --ranks 3 --steps 2 --save-every 1 --out ${run}`);
  const beside = `${FLAGS} --model ${run} ${ADAPTERS}`;
  await runLine(`${beside} --strategy single --lr 0.1 --steps 2 --save-every 2 --out ${tuned}`);
});

describe('a run that begins with the weights of another', () => {
  it.each(['single', 'fsdp --ranks 2', 'ddp --ranks 2', 'offload --slices 2'])(
    'learns as one that begins with its model: %s',
    async (strategy) => {
      const flags = `${FLAGS} ${AGAIN} --strategy ${strategy}`;
      const expected = await losses(`${flags} --model ${run}/model`);
      expect(await losses(`${flags} --init-from ${run}`)).toEqual(expected);
    },
  );

  it('takes a save, the newest of a run, or a model directory', async () => {
    const flags = `${FLAGS} ${AGAIN} --strategy single`;
    const expected = await losses(`${flags} --init-from ${run}`);
    const typed = `${flags} --model ${shape} --init-from`;
    expect(await losses(`${typed} ${run}/saves/step-000002`)).toEqual(expected);
    expect(await losses(`${flags} --init-from ${run}/model`)).toEqual(expected);
    const earlier = await losses(`${typed} ${run}/saves/step-000001`);
    expect(earlier).not.toEqual(expected);
    expect(earlier).not.toEqual(await losses(`${flags} --model ${shape}`));
  });

  it('begins at step 1, and goes on from its own saves', async () => {
    const out = join(folder, 'next');
    const flags = `${FLAGS} ${AGAIN} --strategy fsdp --init-from ${run} --out ${out}`;
    const whole = await losses(`${FLAGS} ${AGAIN} --strategy fsdp --init-from ${run}`);
    const begun = await runLine(`${flags} --steps 2 --save-every 2 --resume auto`);
    expect(begun.steps.map(({ step }) => step)).toEqual([1, 2]);
    expect(begun.warnings).toEqual([]);
    const rest = await runLine(`${flags} --resume auto`);
    expect(rest.resumed).toMatchObject({ step: 2 });
    expect([...lossesOf(begun), ...lossesOf(rest)]).toEqual(whole);
  });

  it('takes adapters where it has the same ones', async () => {
    const flags = `${FLAGS} ${AGAIN} --strategy fsdp --model ${run}`;
    const expected = await losses(`${flags} --adapter ${tuned}/adapter`);
    expect(await losses(`${flags} ${ADAPTERS} --init-from ${tuned}`)).toEqual(expected);
    expect(await losses(`${flags} ${ADAPTERS}`)).not.toEqual(expected);
  });

  it('takes what a language model has learnt for preferences', async () => {
    const pairs = join(folder, 'pairs.jsonl');
    const line = { prompt: 'Call ', chosen: 'me', rejected: 'him' };
    writeFileSync(pairs, `${JSON.stringify(line)}\n`.repeat(4));
    const again = AGAIN.replace(OTHER, pairs).replace('--dropout 0.2', '--dropout 0');
    const flags = `${FLAGS} ${again} --strategy single --task`;
    const whole = await losses(`${flags} orpo --init-from ${run}`);
    expect(whole).toEqual(await losses(`${flags} orpo --model ${run}`));
    const dpo = `${flags} dpo --model ${run}`;
    const begun = await runLine(`${dpo} ${ADAPTERS} --init-from ${tuned}`);
    expect(lossesOf(begun)).toEqual(await losses(`${dpo} --adapter ${tuned}/adapter`));
    // What the adapters have learnt already is no part of the reference.
    expect(begun.steps[0]!.batchFigures!.margin).not.toBe(0);
    const [first] = (await runLine(`${dpo} ${ADAPTERS}`)).steps;
    expect(first!.batchFigures!.margin).toBe(0);
  });

  it.each([
    [
      'of another shape',
      `--model nano --init-from ${run}`,
      /has the weights of another model \(n_positions: 16, got 64\)\. Give the --model that/,
    ],
    [
      'of a model directory of another shape',
      `--model nano --init-from ${run}/model`,
      /has the weights of another model \(/,
    ],
    [
      'of adapters alone',
      `--model ${run} --init-from ${tuned}`,
      /holds adapters alone, and this run trains a whole model\. Give --lora-rank 2/,
    ],
    [
      'of other adapters',
      `--model ${run} --init-from ${tuned} --lora-rank 3`,
      /holds other adapters: rank 2, alpha 4, on c_attn, c_fc, got rank 3, alpha 6, on all-linear\. Give/,
    ],
    [
      'of a whole model, beside adapters',
      `--init-from ${run} --lora-rank 2`,
      /holds a whole model, and this run trains adapters beside one\. Make/,
    ],
    [
      'of a model directory, beside adapters',
      `--init-from ${run}/model --lora-rank 2`,
      /holds a whole model, and adapters are trained beside one\. Give it as --model/,
    ],
    [
      'of another base',
      `--model ${shape} --init-from ${tuned} ${ADAPTERS}`,
      /holds adapters that were trained beside .*run\/model \(.*\), got .* Beside other weights/,
    ],
    [
      'of another task',
      `--model ${run} --task embed --data a.jsonl --init-from ${run}`,
      /was trained for --task lm, got --task embed\. Make a model directory/,
    ],
    [
      'in adapter files',
      `--model ${run} --init-from ${tuned}/adapter`,
      /holds adapters\. Give --adapter .*adapter beside their --model/,
    ],
    [
      'that are not there',
      `--init-from ${shape}`,
      /expected a save, a run or a model directory with weights, got /,
    ],
    [
      'beside --resume',
      `--init-from ${run} --resume ${run}`,
      /--init-from .* and --resume .* both say what the run begins with/,
    ],
    [
      'beside --adapter',
      `--model ${run} --init-from ${run} --adapter ${tuned}`,
      /and --adapter .* both say/,
    ],
  ])('refuses weights %s', async (_, flags, says) => {
    const refused = runLine(`${FLAGS} --strategy single --steps 1 ${flags}`);
    await expect(refused).rejects.toThrow(UsageError);
    await expect(refused).rejects.toThrow(says);
  });
});
