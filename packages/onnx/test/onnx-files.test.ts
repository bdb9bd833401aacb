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
