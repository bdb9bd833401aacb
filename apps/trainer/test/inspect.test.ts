// What `inspect` says about directories that runs leave is compared with the files themselves.

import { cpSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readSafetensors } from '@shardweave/nn';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { classifierFiles, embedderFiles, writeFiles } from './support/encoder-files.js';
import { runCli } from './support/run-cli.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const root = newFolder();
let out: string;
let tuned: string;
const saveOf = (run: string, step: number) => join(run, `saves/step-00000${step}`);
beforeAll(async () => {
  out = join(root, 'run');
  tuned = join(root, 'tuned');
  const tiny = `${tinyFlags(root)} --valid-fraction 0.2 --eval-every 2`;
  await runLine(`${tiny} --strategy fsdp --ranks 2 --steps 4 --save-every 2 --out ${out}`);
  const lora = '--strategy single --lora-rank 2 --steps 1 --save-every 1';
  await runLine(`${tiny} ${lora} --out ${tuned}`);
});

const inspect = (...args: string[]) => runCli(['inspect', ...args]);
const asJson = async (...args: string[]) => {
  const { code, out: text, err } = await inspect(...args, '--json');
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return JSON.parse(text);
};
const weightsIn = (directory: string, name = 'model.safetensors') =>
  readSafetensors(readFileSync(join(directory, name))).tensors;

describe('inspect', () => {
  it('tells of a save what its files and its run say', async () => {
    const path = saveOf(out, 4);
    const weights = weightsIn(join(out, 'model'));
    const numbers = [...weights.values()].reduce((sum, { data }) => sum + data.byteLength / 4, 0);
    const found = await asJson(path, '--tensors');
    expect(found).toMatchObject({
      ...{ kind: 'save', path, writers: 2 },
      model: { family: 'gpt2', parameters: numbers },
      run: { step: 4, updates: 4, config: { strategy: 'fsdp', ranks: 2 } },
      optimizer: { kind: 'AdamW', parameters: weights.size },
    });
    const pieces = readdirSync(path).filter((name) => name.endsWith('.pieces'));
    expect(found.files).toEqual(
      Object.fromEntries(pieces.map((name) => [name, statSync(join(path, name)).size])),
    );
    const [own, state] = found.sums;
    expect(own).toEqual({
      ...{ kind: 'parameter', dtype: 'f32', tensors: weights.size, numbers, bytes: numbers * 4 },
    });
    expect(state).toEqual({
      ...own,
      kind: 'state',
      tensors: weights.size * 2,
      numbers: numbers * 2,
      bytes: numbers * 8,
    });
    expect(found.bytes).toBe(numbers * 12);
    const listed = found.tensors.filter(({ kind }: { kind: string }) => kind === 'parameter');
    expect(
      new Map(listed.map(({ name, shape }: { name: string; shape: number[] }) => [name, shape])),
    ).toEqual(new Map([...weights].map(([name, { shape }]) => [name, shape])));
    const { out: text } = await inspect(path, '--tensors');
    expect(text).toContain(`${path}: a save\n`);
    expect(text).toMatch(/^step +4, 4 of them updates$/m);
    expect(text).toMatch(/^world +2 ranks, fsdp, fp32$/m);
    expect(text).toMatch(/^expAvg of transformer\.wte\.weight +f32 \[256, 8\], 8\.0 KiB$/m);
  });

  it('lists the saves of a run, the newest first, with what was evaluated', async () => {
    const { kind, saves } = await asJson(out);
    expect([kind, saves.map(({ run }: { run: { step: number } }) => run.step)]).toEqual([
      'run',
      [4, 2],
    ]);
    const { out: text } = await inspect(out);
    const rows = text.trimEnd().split('\n').slice(1);
    expect(rows).toHaveLength(2);
    for (const [i, { run }] of saves.entries()) {
      expect(rows[i]).toMatch(
        new RegExp(`^step-00000${run.step}  validation ${run.validLoss.toFixed(4)}`),
      );
    }
    expect(saves[1].run.best.step).toBe(2); // at step 2 it was the best, and is no longer
    expect(rows.map((row) => row.includes('(best)'))).toEqual([true, false]);
  });

  it('knows adapters, a save of adapters, models, and a config alone', async () => {
    const adapters = weightsIn(join(tuned, 'adapter'), 'adapter_model.safetensors');
    const adapter = await asJson(join(tuned, 'adapter'));
    expect(adapter).toMatchObject({ kind: 'adapter', lora: { rank: 2, alpha: 4 } });
    expect(adapter.sums).toMatchObject([{ tensors: adapters.size }]);
    expect((await inspect(saveOf(tuned, 1))).out).toMatch(/^lora +rank 2, alpha 4$/m);
    const model = await asJson(join(out, 'model'));
    expect(model).toMatchObject({ kind: 'model', model: { family: 'gpt2' } });
    expect(model.sums).toMatchObject([{ numbers: model.model.parameters, dtype: 'f32' }]);
    const bare = join(root, 'bare');
    cpSync(join(out, 'model/config.json'), join(bare, 'config.json'));
    expect((await inspect(bare)).out).toMatch(/none: a run from here starts from random weights/);
  });

  it('knows encoders and classifiers', async () => {
    const embedder = writeFiles(join(root, 'embedder'), embedderFiles());
    const classifier = writeFiles(join(root, 'classifier'), classifierFiles(['calm', 'storm']));
    const [bare, whole] = [await asJson(embedder), await asJson(classifier)];
    expect(bare).toMatchObject({ kind: 'model', model: { family: 'bert' } });
    expect(whole.sums[0].tensors).toBe(bare.sums[0].tensors + 2);
  });

  it('finds a flipped bit in any file by --verify, and names the file', async () => {
    expect(await inspect(out, '--verify')).toMatchObject({
      ...{ code: 0, err: '', out: expect.stringMatching(/every piece is as it was written\n$/) },
    });
    const flipped = join(root, 'flipped');
    for (const [i, name] of readdirSync(saveOf(out, 4)).entries()) {
      rmSync(flipped, { recursive: true, force: true });
      cpSync(saveOf(out, 4), flipped, { recursive: true });
      const bytes = readFileSync(join(flipped, name));
      const at = Math.floor(bytes.byteLength * (0.2 + 0.3 * i));
      bytes[at]! ^= 4;
      writeFileSync(join(flipped, name), bytes);
      const { code, err } = await inspect(flipped, '--verify');
      expect(code).toBe(1);
      expect(err).toMatch(new RegExp(`^error: .*'${name}' in .*flipped`));
    }
    // Damage in one of two saves of a run is found as well.
    rmSync(join(root, 'twice'), { recursive: true, force: true });
    cpSync(out, join(root, 'twice'), { recursive: true });
    const [name] = readdirSync(saveOf(out, 2)).filter((each) => each.endsWith('.pieces'));
    writeFileSync(join(saveOf(join(root, 'twice'), 2), name!), 'short');
    const { code, err } = await inspect(join(root, 'twice'), '--verify');
    expect([code, err]).toEqual([
      1,
      expect.stringMatching(new RegExp(`^error: 1 of 2 saves damaged\\. .*'${name}'`)),
    ]);
  });

  it('says in a sentence what it cannot tell', async () => {
    const empty = join(root, 'empty');
    cpSync(saveOf(out, 4), empty, { recursive: true });
    rmSync(join(empty, 'index.json'));
    for (const [path, expected] of [
      [
        '/nowhere',
        /^error: \/nowhere is no directory\. Give a save \(RUN\/saves\/step-000120\), a run/,
      ],
      [join(out, 'saves'), /^error: \S+ holds nothing that is known here\. Give a save/],
      [empty, /pieces of a save without their index\.json: a save that did not end\. Give/],
      [join(out, 'config.yaml'), /is no directory/],
    ] as const) {
      const { code, out: text, err } = await inspect(path);
      expect({ code, text }).toEqual({ code: 2, text: '' });
      expect(err).toMatch(expected);
    }
    expect((await inspect(join(out, 'model'), '--verify')).err).toMatch(
      /^error: --verify: .*without checksums/,
    );
    expect((await inspect()).err).toMatch(/missing required argument 'PATH'/);
  });
});
