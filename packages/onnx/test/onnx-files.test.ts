// The folder that transformers.js loads: its names, its texts, and the labels of a classifier.

import { type OnnxDType, OnnxModelError, OnnxUsageError, onnxFiles } from '@shardweave/onnx';
import { expect, it } from 'vitest';
import { bytesOf } from './support/read-onnx.ts';
import { SMALL, stateOf, textsOf } from './support/small-encoder.ts';

const state = stateOf(SMALL);
const without = (name: string) => {
  const texts = textsOf(SMALL);
  texts.delete(name);
  return texts;
};
const changed = (fields: object) => {
  const texts = textsOf(SMALL);
  const config = { ...JSON.parse(texts.get('config.json')!), ...fields };
  return texts.set('config.json', JSON.stringify(config));
};
const namesOf = (dtypes?: readonly OnnxDType[]) =>
  onnxFiles(
    { texts: textsOf(SMALL), state },
    { task: 'feature-extraction', ...(dtypes && { dtypes }) },
  ).map(({ name }) => name);

it('names of files are those that transformers.js looks for', () => {
  const texts = ['config.json', 'tokenizer.json', 'tokenizer_config.json'];
  expect(namesOf()).toEqual([...texts, 'onnx/model.onnx', 'onnx/model_quantized.onnx']);
  expect(namesOf(['f16'])).toEqual([...texts, 'onnx/model_fp16.onnx']);
});

it('texts are written as they stand', async () => {
  const texts = textsOf(SMALL).set('vocab.txt', 'mañana\n');
  const files = onnxFiles({ texts, state }, { task: 'text-classification' });
  expect(files.map(({ name }) => name)).toContain('vocab.txt');
  for (const file of files.slice(0, texts.size)) {
    const bytes = await bytesOf(file);
    expect(new TextDecoder().decode(bytes)).toBe(texts.get(file.name));
    expect(file.byteLength).toBe(bytes.byteLength);
  }
});

it('a classifier without labels gets those that transformers gives', async () => {
  const texts = changed({ id2label: undefined });
  const [config] = onnxFiles({ texts, state }, { task: 'text-classification' });
  const fields = JSON.parse(new TextDecoder().decode(await bytesOf(config!)));
  expect(fields).toEqual({
    ...JSON.parse(texts.get('config.json')!),
    id2label: { 0: 'LABEL_0', 1: 'LABEL_1', 2: 'LABEL_2' },
    label2id: { LABEL_0: 0, LABEL_1: 1, LABEL_2: 2 },
  });
});

it('labels of another number than the weights are refused', () => {
  const texts = changed({ id2label: { 0: 'calm', 1: 'storm' } });
  expect(() => onnxFiles({ texts, state }, { task: 'text-classification' })).toThrow(
    new OnnxModelError(
      "onnxFiles: expected id2label of config.json to have the 3 labels of 'classifier.weight', got 2.",
    ),
  );
});

it("a reranker's config.json goes through as sentence-transformers writes it", async () => {
  const single = new Map([...state].filter(([name]) => !name.startsWith('classifier')));
  const row = { dtype: 'f32' as const, shape: [1, SMALL.hidden_size] };
  single.set('classifier.weight', { ...row, data: new Uint8Array(SMALL.hidden_size * 4) });
  single.set('classifier.bias', { dtype: 'f32', shape: [1], data: new Uint8Array(4) });
  const texts = changed({
    id2label: { 0: 'LABEL_0' },
    sentence_transformers: { activation_fn: 'torch.nn.modules.linear.Identity', version: '4.0.1' },
    sbert_ce_default_activation_function: 'torch.nn.modules.linear.Identity',
  });
  const files = onnxFiles({ texts, state: single }, { task: 'text-classification' });
  const config = new TextDecoder().decode(await bytesOf(files[0]!));
  expect(config).toBe(texts.get('config.json'));
});

it('a classifier on a decoder, and a plain encoder for classification, are refused', () => {
  const gpt2 = { architectures: ['GPT2ForSequenceClassification'], model_type: 'gpt2' };
  const decoder = textsOf(SMALL).set('config.json', JSON.stringify(gpt2));
  const task = 'text-classification' as const;
  expect(() => onnxFiles({ texts: decoder, state }, { task })).toThrow(
    'onnxModel: expected a classifier on an encoder (bert), got one on a gpt2.',
  );
  const plain = changed({ architectures: ['BertModel'] });
  expect(() => onnxFiles({ texts: plain, state }, { task })).toThrow(
    /expected architectures to be BertForSequenceClassification, got \["BertModel"\]/,
  );
});

it('a missing text, and no type at all, are refused', () => {
  for (const name of ['config.json', 'tokenizer.json', 'tokenizer_config.json']) {
    expect(() =>
      onnxFiles({ texts: without(name), state }, { task: 'feature-extraction' }),
    ).toThrow(
      new OnnxUsageError(
        `onnxFiles: expected the text of ${name}, which transformers.js needs, got none.`,
      ),
    );
  }
  expect(() => namesOf([])).toThrow('onnxFiles: expected dtypes to have f32, f16, q8, got none.');
});
