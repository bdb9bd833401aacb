// The command `gguf` of embedders: a BERT's file says how its rows become one, and so does that of
// a language model that embeds. llama.cpp computes with such files in packages/gguf.

import { copyFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { openGguf } from '@shardweave/gguf/read';
import { Decoder, stateDict, writeSafetensors } from '@shardweave/nn';
import { sentenceTransformersFiles } from '@shardweave/nn/embedding';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { FileSource } from '../src/files/file-source.js';
import {
  classifierFiles,
  type EncoderFiles,
  embedderFiles,
  encoderFiles,
  writeFiles,
} from './support/encoder-files.js';
import { runCli } from './support/run-cli.js';
import { ROOT } from './support/run-flags.js';

const folder = newFolder();
let count = 0;
const newPath = (name: string) => join(folder, `${name}-${++count}`);

/** Runs the command on a directory with these files. */
async function write(files: EncoderFiles) {
  const out = `${newPath('made')}.gguf`;
  const model = writeFiles(newPath('model'), files);
  const { code, out: printed, err } = await runCli(['gguf', '--model', model, '--out', out]);
  return { code, err, out, lines: printed.trimEnd().split('\n') };
}

/** A number of a file's metadata. */
async function numberIn(path: string, key: string): Promise<unknown> {
  const source = await FileSource.open(path);
  try {
    const { metadata } = await openGguf(source);
    return metadata.get(key)?.value;
  } finally {
    await source.close();
  }
}

it.each([
  ['mean', 1],
  ['cls', 2],
  ['last', 3],
] as const)("a BERT's file says that it pools by %s", async (pooling, type) => {
  const { code, err, out, lines } = await write(embedderFiles({ pooling }));
  expect({ code, err }).toEqual({ code: 0, err: '' });
  expect(await numberIn(out, 'bert.pooling_type')).toBe(type);
  expect(lines).toEqual([
    expect.stringMatching(
      new RegExp(`^\\S+: bert, 45\\.8k parameters, f16, pooling ${pooling}, [\\d.]+ KiB$`),
    ),
  ]);
});

it('a BERT without modules.json has a row for each token, and the command says so', async () => {
  const { code, err, out, lines } = await write(encoderFiles());
  expect({ code, err }).toEqual({ code: 0, err: '' });
  expect(await numberIn(out, 'bert.pooling_type')).toBe(0);
  expect(lines.slice(1)).toEqual([
    'it gives a row for each token, as llama.cpp converts an encoder without modules.json: pass --pooling mean (or cls) to its programs',
  ]);
});

it('a classifier is refused, with the command that writes it', async () => {
  const { code, err } = await write(classifierFiles(['calm', 'storm']));
  expect(code).toBe(2);
  expect(err).toMatch(
    /^error: --model: \S+ is a classifier \(BertForSequenceClassification\), whose labels have no place in a GGUF\. For transformers\.js: shardweave onnx --model \S+ --out DIR\.\n$/,
  );
  expect(readdirSync(folder).filter((name) => name.includes('.gguf.'))).toEqual([]);
});

it('a Qwen 3 that embeds says its pooling, and without modules.json it has none', async () => {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const config = {
    model_type: 'qwen3' as const,
    ...{ vocab_size: 512, hidden_size: 32, intermediate_size: 64 },
    ...{ head_dim: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1 },
    ...{ max_position_embeddings: 64, tie_word_embeddings: true },
  };
  const state = await stateDict(new Decoder(device, config));
  // Files of embedders have a decoder's names without their first word.
  const bare = new Map([...state].map(([name, tensor]) => [name.replace(/^model\./, ''), tensor]));
  const files = {
    'config.json': JSON.stringify({ ...config, architectures: ['Qwen3ForCausalLM'] }),
    'model.safetensors': writeSafetensors(bare),
  };
  device.dispose();
  await backend.dispose();
  const own = sentenceTransformersFiles({ pooling: 'last', normalize: true, width: 32 });
  const beside = Object.fromEntries(own.map(({ path, text }) => [path, text]));
  for (const [more, type] of [
    [beside, 3],
    [{}, undefined],
  ] as const) {
    const model = writeFiles(newPath('qwen3'), { ...files, ...more });
    for (const name of ['tokenizer.json', 'tokenizer_config.json']) {
      copyFileSync(`${ROOT}tooling/tokenizer/${name}`, join(model, name));
    }
    const out = `${newPath('qwen3')}.gguf`;
    const { code, err, out: printed } = await runCli(['gguf', '--model', model, '--out', out]);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(await numberIn(out, 'qwen3.pooling_type')).toBe(type);
    expect(printed.includes('pooling last')).toBe(type === 3);
    expect(printed.trimEnd()).not.toContain('\n');
  }
});
