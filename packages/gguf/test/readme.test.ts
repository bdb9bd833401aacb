// The README's examples are run as they stand.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { modelGguf } from '@shardweave/gguf';
import { peftConfigText, peftState, writeSafetensors } from '@shardweave/nn';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runReadmeExample } from '../../../tooling/test-kit/readme-example.ts';
import { bareModel } from './support/hub-models.ts';
import { bytesOf, readGguf } from './support/written.ts';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const folder = newFolder();

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

it('the third one makes one of adapters', async () => {
  const { texts } = bareModel(512, 4);
  const zeros = (...shape: readonly number[]) => ({
    dtype: 'f32' as const,
    shape,
    data: new Uint8Array(shape.reduce((product, size) => product * size, 4)),
  });
  const layer = 'model.layers.0.mlp.up_proj';
  const factors = new Map([
    [`${layer}.lora_A.weight`, zeros(2, 4)],
    [`${layer}.lora_B.weight`, zeros(1, 2)],
  ]);
  writeFileSync(join(folder, 'config.json'), texts.get('config.json')!);
  const config = peftConfigText({ rank: 2, alpha: 4, dropout: 0, layers: [layer] });
  writeFileSync(join(folder, 'adapter_config.json'), config);
  writeFileSync(join(folder, 'adapter_model.safetensors'), writeSafetensors(peftState(factors)));
  const change = (example: string) =>
    `${example.replaceAll(/'\.\/(smollm2|adapter)\//g, `'${folder}/`)}\nconsole.log(adapters.byteLength);`;
  const [byteLength] = await runReadmeExample(PACKAGE, { index: 2, change });
  // lora_A and lora_B are each padded to 32 bytes, behind a header.
  expect(byteLength).toBeGreaterThan(64);
});

it('the fourth one reads a file', async () => {
  const path = join(folder, 'read.gguf');
  const file = modelGguf(bareModel(512, 32), { type: 'q8_0', name: 'x' });
  writeFileSync(path, await bytesOf(file));
  const change = (example: string) =>
    example
      .replace("'model.gguf'", JSON.stringify(path))
      .replaceAll(/console\.log\((.*)\);/g, 'console.log([$1]);');
  const logged = await runReadmeExample(PACKAGE, { index: 3, change });
  expect(logged).toEqual([
    ['llama', 'token_embd.weight', 'q8_0', 256, 68],
    ['tokenizer.json,tokenizer_config.json'],
  ]);
});
