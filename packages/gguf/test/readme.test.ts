// The README's examples are run as they stand.
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from '@shardweave/nn';
import { afterAll, expect, it } from 'vitest';
import { runReadmeExample } from '../../../tooling/test-kit/readme-example.ts';
import { bareModel } from './support/hub-models.ts';
import { readGguf } from './support/written.ts';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'gguf-readme-'));
afterAll(() => rmSync(folder, { recursive: true }));

it('the first example writes a file', async () => {
  const change = (example: string) => example.replace(/console\.log\((.*)\)/, 'console.log([$1])');
  const logged = await runReadmeExample(PACKAGE, { change });
  expect(logged).toEqual([['GGUF', true]]);
});

it('the second one makes one of a model directory', async () => {
  const { texts, state } = bareModel(512);
  const model = join(folder, 'model');
  mkdirSync(model);
  for (const [name, text] of texts) {
    writeFileSync(join(model, name), text);
  }
  writeFileSync(join(model, 'model.safetensors'), writeSafetensors(state));
  const change = (example: string) =>
    example
      .replace("'./smollm2'", JSON.stringify(model))
      .replaceAll("'model.gguf", `'${folder}/model.gguf`);
  await runReadmeExample(PACKAGE, { index: 1, change });
  expect(readdirSync(folder).sort()).toEqual(['model', 'model.gguf']);
  const path = join(folder, 'model.gguf');
  const { metadata, tensorInfos } = await readGguf(path);
  expect(metadata['general.name']).toBe('SmolLM2 of mine');
  expect(tensorInfos).toHaveLength(state.size);
  expect(readFileSync(path).subarray(0, 4).toString()).toBe('GGUF');
});
