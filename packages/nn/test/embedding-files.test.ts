// The files of sentence-transformers, as that library writes them, and back.

import {
  readSentenceTransformers,
  type SentenceTransformersConfig,
  sentenceTransformersFiles,
} from '@shardweave/nn/embedding';
import { describe, expect, it } from 'vitest';
import { errorOf, loose } from '../../../tooling/test-kit/index.ts';

const module = (idx: number, path: string, kind: string) => ({
  idx,
  name: String(idx),
  path,
  type: `sentence_transformers.models.${kind}`,
});
const THREE = [
  module(0, '', 'Transformer'),
  module(1, '1_Pooling', 'Pooling'),
  module(2, '2_Normalize', 'Normalize'),
];
/** The poolings of a config, all that the library knows, of which one is on. */
const modes = (on: string) =>
  Object.fromEntries(
    ['cls_token', 'mean_tokens', 'max_tokens', 'mean_sqrt_len_tokens', 'lasttoken'].map((name) => [
      `pooling_mode_${name}`,
      name === on,
    ]),
  );
const pooling = (on: string, more: object = {}) => ({
  word_embedding_dimension: 1024,
  ...modes(on),
  ...more,
});

const readerOf = (files: Readonly<Record<string, unknown>>) => async (path: string) =>
  path in files ? JSON.stringify(files[path]) : undefined;

describe('readSentenceTransformers', () => {
  it('reads a decoder with the last token, prompts and a normalization', async () => {
    const files = {
      'modules.json': THREE,
      '1_Pooling/config.json': pooling('lasttoken', { include_prompt: true }),
      'config_sentence_transformers.json': {
        prompts: { query: 'Instruct: find\nQuery:', document: '' },
        default_prompt_name: null,
        similarity_fn_name: 'cosine',
      },
    };
    expect(await readSentenceTransformers(readerOf(files))).toEqual({
      pooling: 'last',
      normalize: true,
      width: 1024,
      includePrompt: true,
      prompts: { query: 'Instruct: find\nQuery:', document: '' },
      similarity: 'cosine',
    });
  });

  it('reads an encoder with a mean and no normalization, of few files and null fields', async () => {
    const files = {
      'modules.json': THREE.slice(0, 2),
      '1_Pooling/config.json': pooling('mean_tokens'),
      'config_sentence_transformers.json': { prompts: null, similarity_fn_name: null },
      'sentence_bert_config.json': { max_seq_length: 256, do_lower_case: false },
    };
    expect(await readSentenceTransformers(readerOf(files))).toEqual({
      pooling: 'mean',
      normalize: false,
      width: 1024,
      includePrompt: true,
      maxSeqLength: 256,
    });
  });

  it('reads a pooling that is given by name', async () => {
    const config = { word_embedding_dimension: 8, pooling_mode: 'cls' };
    const files = { 'modules.json': THREE, '1_Pooling/config.json': config };
    expect(await readSentenceTransformers(readerOf(files))).toMatchObject({ pooling: 'cls' });
  });

  it('refuses modules and poolings that an EmbeddingModel does not have, by name', async () => {
    const dense = [
      ...THREE.slice(0, 2),
      module(2, '2_Dense', 'Dense'),
      module(3, '3', 'Normalize'),
    ];
    const found = async (modules: unknown, config: unknown = pooling('cls_token')) => {
      const files = { 'modules.json': modules, '1_Pooling/config.json': config };
      return (await errorOf(() => readSentenceTransformers(readerOf(files))))?.message;
    };
    const both = { ...pooling('cls_token'), pooling_mode_mean_tokens: true };
    expect([
      await found(dense),
      await found([THREE[0], THREE[2]]),
      await found([module(0, '0_Transformer', 'Transformer'), THREE[1]]),
      await found({}),
      await found(THREE, pooling('max_tokens')),
      await found(THREE, both),
      await found(THREE, pooling('none')),
      await found(THREE, { ...modes('cls_token') }),
      await found(undefined),
    ]).toEqual([
      'modules.json: expected the modules Transformer, Pooling and perhaps Normalize, got Transformer, Pooling, Dense, Normalize. Dense is not supported.',
      'modules.json: expected the modules Transformer, Pooling and perhaps Normalize, got Transformer, Normalize.',
      "modules.json: expected the Transformer in the directory itself, got '0_Transformer'.",
      'modules.json: expected a list of modules.',
      '1_Pooling/config.json: expected one of pooling_mode_mean_tokens, pooling_mode_cls_token, pooling_mode_lasttoken, got pooling_mode_max_tokens. Other poolings are not supported.',
      '1_Pooling/config.json: expected one of pooling_mode_mean_tokens, pooling_mode_cls_token, pooling_mode_lasttoken, got pooling_mode_cls_token, pooling_mode_mean_tokens. Other poolings are not supported.',
      '1_Pooling/config.json: expected one of pooling_mode_mean_tokens, pooling_mode_cls_token, pooling_mode_lasttoken, got none. Other poolings are not supported.',
      '1_Pooling/config.json: expected word_embedding_dimension, got none.',
      'expected modules.json, got no such file. sentence-transformers writes it.',
    ]);
  });
});

describe('sentenceTransformersFiles', () => {
  const config: SentenceTransformersConfig = {
    pooling: 'last',
    normalize: true,
    width: 64,
    includePrompt: false,
    prompts: { query: 'query: ' },
    similarity: 'dot',
    maxSeqLength: 512,
  };

  it.each([
    ['all that a config says', config],
    ['the least', { pooling: 'mean', normalize: false, width: 8 } as const],
  ])('writes %s so that it is read back', async (_, given) => {
    const files = new Map(sentenceTransformersFiles(given).map(({ path, text }) => [path, text]));
    const read = await readSentenceTransformers(async (path) => files.get(path));
    const defaults = { includePrompt: true, prompts: {}, similarity: 'cosine' };
    expect(read).toEqual({ ...defaults, ...given });
  });

  it('writes modules.json last, as that library does', () => {
    const { path, text } = sentenceTransformersFiles(config).at(-1)!;
    expect(path).toBe('modules.json');
    expect(JSON.parse(text)).toEqual(THREE);
  });

  it('refuses a config that cannot work', async () => {
    const call = () => sentenceTransformersFiles(loose({ ...config, width: 0 }));
    expect((await errorOf(call))?.message).toBe(
      'sentenceTransformersFiles: expected width to be a whole number of at least 1, got 0.',
    );
  });
});
