// The README's examples are run as they stand.

import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from '@shardweave/nn';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runReadmeExample } from '../../../tooling/test-kit/readme-example.ts';
import { SMALL, stateOf, textsOf } from './support/small-encoder.ts';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));

it('the first example makes a file', async () => {
  const change = (example: string) => example.replace(/console\.log\((.*)\)/, 'console.log([$1])');
  const logged = await runReadmeExample(PACKAGE, { change });
  expect(logged).toEqual([['onnx/model_quantized.onnx', true]]);
});

it('the second one writes a folder for transformers.js', async () => {
  const folder = newFolder();
  const model = join(folder, 'classifier');
  mkdirSync(model);
  for (const [name, text] of textsOf(SMALL)) {
    writeFileSync(join(model, name), text);
  }
  writeFileSync(join(model, 'model.safetensors'), writeSafetensors(stateOf(SMALL)));
  const change = (example: string) =>
    example
      .replace("'./classifier'", JSON.stringify(model))
      .replace('./models/', `${folder}/models/`);
  await runReadmeExample(PACKAGE, { index: 1, change });
  const written = readdirSync(join(folder, 'models/mine'), { recursive: true });
  expect(written.sort()).toEqual([
    ...['config.json', 'onnx', 'onnx/model.onnx', 'onnx/model_quantized.onnx'],
    ...['tokenizer.json', 'tokenizer_config.json'],
  ]);
});
