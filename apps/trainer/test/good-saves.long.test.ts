// Ranks in threads and in processes of their own: one that diverges leaves its good saves, and one
// that is over leaves its best weights, as ranks in one thread do.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DivergedError } from '../src/errors.js';
import { buildCommand } from './support/build-command.js';
import { runLine, tinyFlags } from './support/tiny-run.js';

const root = newFolder();
let entry: string;
beforeAll(async () => {
  entry = await buildCommand();
});

describe.each(['shm', 'ws'])('over %s', (transport) => {
  it('a run that diverges sets its bad save aside', { timeout: 120_000 }, async () => {
    const out = join(root, transport);
    const flags = `${tinyFlags(root)} --ranks 2 --transport ${transport} --save-every 1 --keep 1 --out ${out}`;
    await runLine(`${flags} --steps 2`, { entry });
    const broken = runLine(`${flags} --steps 9 --resume auto --lr 1e30 --clip 0`, { entry });
    await expect(broken).rejects.toThrow(DivergedError);
    await expect(broken).rejects.toThrow(/^The loss is .* at step 4: .*step-000002: convert/);
    expect(readdirSync(join(out, 'saves')).sort()).toEqual(['step-000002', 'step-000003.aside']);
    const again = await runLine(`${flags} --steps 3 --resume auto`, { entry });
    expect(again.resumed!.step).toBe(2);
  });

  it('--final best leaves the weights that ranks in one thread leave', {
    timeout: 120_000,
  }, async () => {
    const [data, valid] = [join(root, 'data.txt'), join(root, 'valid.txt')];
    writeFileSync(data, 'the cat sat on a mat, '.repeat(30));
    writeFileSync(valid, 'Zq#'.repeat(30)); // so unlike the data that training makes it worse
    const flags = `${tinyFlags(root)} --data ${data} --valid ${valid} --eval-every 2 --ranks 2 --lr 0.02 --warmup 0 --steps 8 --final best`;
    const [out, alone] = [join(root, `${transport}-best`), join(root, `${transport}-alone`)];
    const { final } = await runLine(`${flags} --transport ${transport} --out ${out}`, { entry });
    expect(final!.step).toBeLessThan(8);
    expect(await runLine(`${flags} --out ${alone}`)).toHaveProperty('final', final);
    const weights = (path: string) => readFileSync(join(path, 'model/model.safetensors'));
    expect(weights(out).equals(weights(alone))).toBe(true);
  });
});
