// The command `onnx` makes a folder for transformers.js of an encoder's directory. The folder is
// whole or does not exist, and what the command cannot write it explains. That transformers.js
// loads such folders is held in packages/onnx.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readSafetensors } from '@shardweave/nn';
import { onnxFiles } from '@shardweave/onnx';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SignalError } from '../src/errors.js';
import { Interrupt } from '../src/interrupt.js';
import {
  classifierFiles,
  type EncoderFiles,
  embedderFiles,
  encoderFiles,
  writeFiles,
} from './support/encoder-files.js';
import { runCli } from './support/run-cli.js';

const folder = newFolder();
let count = 0;
const newPath = (name = 'made') => join(folder, `${name}-${++count}`);

const run = (...args: string[]) => runCli(['onnx', ...args]);

/** Runs the command on a directory with these files; returns the folder and the printed lines. */
async function write(files: EncoderFiles, ...flags: string[]) {
  const out = newPath();
  const model = writeFiles(newPath('model'), files);
  const { code, err, out: printed } = await run('--model', model, '--out', out, ...flags);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return {
    out,
    lines: printed.trimEnd().split('\n'),
    name: JSON.stringify(out.slice(folder.length + 1)),
  };
}
const textOf = (out: string, name: string) => readFileSync(join(out, name), 'utf8');

describe('shardweave onnx', () => {
  it("writes an embedder's graphs, its tokenizer and the files of its pooling", async () => {
    const files = embedderFiles({ prompts: { query: 'query: ', document: '' } });
    const { out, lines, name } = await write(files);
    const names = readdirSync(out, { recursive: true, encoding: 'utf8' });
    expect(names.sort()).toEqual([
      ...['1_Pooling', '1_Pooling/config.json', 'config.json', 'config_sentence_transformers.json'],
      ...['modules.json', 'onnx', 'onnx/model.onnx', 'onnx/model_quantized.onnx'],
      ...['sentence_bert_config.json', 'tokenizer.json', 'tokenizer_config.json'],
    ]);
    for (const kept of ['modules.json', '1_Pooling/config.json', 'config.json', 'tokenizer.json']) {
      expect(textOf(out, kept)).toBe(files[kept]);
    }
    expect(lines).toEqual([
      expect.stringMatching(
        /^\S+: bert, 45\.8k parameters, onnx\/model\.onnx [\d.]+ KiB, onnx\/model_quantized\.onnx [\d.]+ KiB$/,
      ),
      `in transformers.js, with env.localModelPath = ${JSON.stringify(`${folder}/`)}:`,
      `  const embed = await pipeline('feature-extraction', ${name}, { dtype: 'q8' });`,
      "  const rows = await embed(texts, { pooling: 'mean', normalize: true });",
      'before a text of kind query: "query: "',
    ]);
  });

  it('writes the bytes that packages/onnx has for the weights', async () => {
    const files = embedderFiles();
    const { out } = await write(files, '--dtype', 'f32,f16');
    const { tensors: state } = readSafetensors(files['model.safetensors'] as Uint8Array);
    const texts = new Map(Object.entries(files).filter(([name]) => !name.endsWith('.safetensors')));
    const made = onnxFiles(
      { texts: texts as Map<string, string>, state },
      { task: 'feature-extraction', dtypes: ['f32', 'f16'] },
    );
    expect(readdirSync(join(out, 'onnx')).sort()).toEqual(['model.onnx', 'model_fp16.onnx']);
    for (const { name, pieces } of made.filter(({ name }) => name.endsWith('.onnx'))) {
      const all: Uint8Array[] = [];
      for await (const piece of pieces()) {
        all.push(piece.slice());
      }
      expect(Buffer.concat(all).equals(readFileSync(join(out, name)))).toBe(true);
    }
  });

  it.each<[string, () => EncoderFiles, number]>([
    ['sentence-transformers does', () => embedderFiles(), 24],
    ['its positions end', encoderFiles, 32],
    ['its tokenizer already does', () => withSetting(embedderFiles(), 'model_max_length', 20), 20],
    [
      'its positions end, where it names no end',
      () => withSetting(encoderFiles(), 'model_max_length', 1e30),
      32,
    ],
  ])('lets transformers.js cut texts where %s', async (_, files, most) => {
    const { out } = await write(files(), '--dtype', 'q8');
    const settings = JSON.parse(textOf(out, 'tokenizer_config.json'));
    expect(settings).toMatchObject({ tokenizer_class: 'BertTokenizer', model_max_length: most });
  });

  it.each<[string, EncoderFiles, readonly string[]]>([
    [
      'its first token',
      embedderFiles({ pooling: 'cls', normalize: false }),
      ["embed(texts, { pooling: 'cls', normalize: false });"],
    ],
    [
      'its last token',
      embedderFiles({ pooling: 'last' }),
      [
        "embed(text, { pooling: 'last_token', normalize: true });",
        'one text a call, for padding would be its last token',
      ],
    ],
    [
      'nobody says what',
      encoderFiles(),
      [
        "embed(texts, { pooling: 'mean', normalize: true });",
        'no modules.json says how it pools; mean is usual',
      ],
    ],
  ])('says how to pool an encoder by %s', async (_, files, said) => {
    const { lines } = await write(files, '--dtype', 'f16');
    expect(lines[2]).toContain("{ dtype: 'fp16' }");
    expect(lines.slice(3)).toEqual([`  const rows = await ${said[0]}`, ...said.slice(1)]);
  });

  it('writes a classifier with its labels, of a run too', async () => {
    const run = newPath('run');
    const files = classifierFiles(['calm', 'storm']);
    writeFiles(join(run, 'model'), files);
    const out = newPath();
    const { code, err, out: printed } = await runCli(['onnx', '--model', run, '--out', out]);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(printed.split('\n').slice(2, 4)).toEqual([
      `  const classify = await pipeline('text-classification', ${JSON.stringify(out.slice(folder.length + 1))}, { dtype: 'q8' });`,
      '  const labels = await classify(texts); // 2 of them',
    ]);
    expect(textOf(out, 'config.json')).toBe(files['config.json']);
  });

  it('writes a reranker with the fields that its files have, and says how pairs are scored', async () => {
    const fields = {
      sbert_ce_default_activation_function: 'torch.nn.modules.linear.Identity',
      sentence_transformers: { activation_fn: 'torch.nn.modules.linear.Identity', version: '4' },
    };
    const { lines } = await write(classifierFiles(['LABEL_0'], fields), '--dtype', 'f32');
    expect(lines.slice(3).join('\n')).toMatch(
      /AutoModelForSequenceClassification.*dtype: 'fp32'.*\n.*text_pair: texts.*\n.*logits/,
    );
    expect(lines.join()).not.toContain('pipeline(');
  });

  it('prints its flags, and nothing with --quiet', async () => {
    const help = await run('--help');
    expect(help.out).toMatch(/--dtype <f32\|f16\|q8,\.\.\.> .*\(default:\s+f32,q8\)/s);
    const model = writeFiles(newPath('model'), encoderFiles());
    const quiet = await run('--model', model, '--out', newPath(), '--dtype', 'q8', '--quiet');
    expect(quiet).toEqual({ code: 0, out: '', err: '' });
  });

  const LLAMA = { model_type: 'llama', architectures: ['LlamaForCausalLM'] };
  it.each<[what: string, files: () => EncoderFiles, message: RegExp]>([
    [
      'a decoder',
      () => withConfig(encoderFiles(), LLAMA),
      /expected a text encoder \(a BERT, .*\), got \S+, a llama\. A decoder has another way: shardweave gguf --model \S+ --out FILE writes it/,
    ],
    [
      'a classifier on a decoder',
      () =>
        withConfig(encoderFiles(), { ...LLAMA, architectures: ['LlamaForSequenceClassification'] }),
      /got \S+, a LlamaForSequenceClassification\. Classifiers on decoders are not written/,
    ],
    [
      'no tokenizer settings',
      () => without(embedderFiles(), 'tokenizer_config.json'),
      /can't be ONNX\. .*expected the text of tokenizer_config\.json/,
    ],
    [
      'tokenizer settings that are no JSON',
      () => ({ ...embedderFiles(), 'tokenizer_config.json': '{' }),
      /tokenizer_config\.json can't be used \(.*\)\. Give a directory with the tokenizer/,
    ],
    [
      'a module that the graph would lack',
      () => ({
        ...embedderFiles(),
        'modules.json': embedderFiles()['modules.json']!.toString().replace('.Normalize', '.Dense'),
      }),
      /can't be used\. modules\.json: .*Dense is not supported\. Give an embedder that pools/,
    ],
    [
      'a pooling that leads out of the directory',
      () => ({
        ...embedderFiles(),
        'modules.json': embedderFiles()['modules.json']!.toString().replace('1_Pooling', '..'),
      }),
      /can't be used\. expected \.\.\/config\.json, got no such file/,
    ],
    [
      "a classifier without a classifier's weights",
      () => ({
        ...classifierFiles(['a']),
        'model.safetensors': encoderFiles()['model.safetensors']!,
      }),
      /can't be used\. expected the weights of a classifier, got some without a head/,
    ],
    [
      'a field that would change what it computes',
      () => withConfig(encoderFiles(), { position_embedding_type: 'relative_key' }),
      /can't be used\. config\.json: expected position_embedding_type .* Give a directory with a BERT/,
    ],
  ])('answers %s with a sentence, and leaves nothing', async (_, files, message) => {
    const model = writeFiles(newPath('model'), files());
    const out = newPath('refused');
    const { code, out: printed, err } = await run('--model', model, '--out', out);
    expect([code, printed]).toEqual([2, '']);
    expect(err).toMatch(message);
    expect(err).toMatch(/^error: --model: .*\.\n$/);
    expect(readdirSync(folder).filter((name) => name.startsWith('refused'))).toEqual([]);
  });

  it('leaves nothing where a number is beyond f16, and at Ctrl-C', async () => {
    const files = encoderFiles();
    const weights = Buffer.from(files['model.safetensors'] as Uint8Array);
    // The first number of the first tensor, the table of tokens.
    weights.writeFloatLE(1e6, 8 + Number(weights.readBigUInt64LE()));
    const model = writeFiles(newPath('model'), { ...files, 'model.safetensors': weights });
    const out = newPath('beyond');
    const { code, err } = await run('--model', model, '--out', out, '--dtype', 'f16');
    expect(code).toBe(2);
    expect(err).toMatch(/^error: --model: \S+ can't be ONNX\. .*got 1000000\. Write it as f32/);

    const interrupt = new Interrupt({ exit: () => {} });
    interrupt.ask(new SignalError('SIGINT'));
    const args = ['onnx', '--model', model, '--out', out];
    const ended = await runCli(args, { interrupt });
    expect(ended).toEqual({ code: 130, out: '', err: 'error: Ended by Ctrl-C.\n' });
    expect(readdirSync(folder).filter((name) => name.startsWith('beyond'))).toEqual([]);
  });

  it('goes over no folder that has something in it, and names what it does not take', async () => {
    const model = writeFiles(newPath('model'), encoderFiles());
    const out = newPath();
    mkdirSync(out);
    writeFileSync(join(out, 'kept'), 'kept');
    const full = await run('--model', model, '--out', out);
    expect(full.err).toMatch(/^error: --out: \S+ is not empty\. Give a new directory/);
    expect(readdirSync(out)).toEqual(['kept']);
    const gguf = `${newPath()}.gguf`;
    writeFileSync(gguf, 'GGUF');
    const file = await run('--model', gguf, '--out', newPath());
    expect(file.err).toMatch(/a GGUF file\. Give the directory that it was made from\./);
    const dtype = await run('--model', model, '--out', newPath(), '--dtype', 'f32,int8');
    expect(dtype.err).toMatch(/--dtype: expected one or more of f32, f16, q8, .*got "f32,int8"\./);
    const bare = without(encoderFiles(), 'model.safetensors');
    const weightless = await run('--model', writeFiles(newPath(), bare), '--out', newPath());
    expect(weightless.err).toMatch(/expected a directory with config\.json and weights/);
  });
});

function without(files: EncoderFiles, name: string): EncoderFiles {
  return Object.fromEntries(Object.entries(files).filter(([other]) => other !== name));
}

function withConfig(files: EncoderFiles, fields: object): EncoderFiles {
  const config = { ...JSON.parse(String(files['config.json'])), ...fields };
  return { ...files, 'config.json': JSON.stringify(config) };
}

function withSetting(files: EncoderFiles, name: string, value: unknown): EncoderFiles {
  const settings = { ...JSON.parse(String(files['tokenizer_config.json'])), [name]: value };
  return { ...files, 'tokenizer_config.json': JSON.stringify(settings) };
}
