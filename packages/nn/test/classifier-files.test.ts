// A classifier's files: the config.json of published models, and weights as the Hub's classes
// ...ForSequenceClassification have them.

import {
  FormatError,
  loadStateDict,
  NnConfigError,
  resolveDecoderConfig,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import {
  makeSequenceClassifier,
  openSequenceClassifier,
  parseSequenceClassifierConfig,
  resolveEncoderConfig,
  type SequenceClassifierConfig,
  sequenceClassifierConfigText,
  sequenceClassifierFiles,
} from '@shardweave/nn/embedding';
import { expect, it } from 'vitest';
import { errorOf } from '../../../tooling/test-kit/index.ts';
import { filesWith, MemoryFiles } from './support/memory-files.js';
import { makeDevice } from './support/support.js';

/** The config.json of ms-marco-MiniLM-L6-v2, a reranker, as the Hub has it. */
const MARCO = {
  architectures: ['BertForSequenceClassification'],
  ...{ attention_probs_dropout_prob: 0.1, classifier_dropout: null, gradient_checkpointing: false },
  ...{ hidden_act: 'gelu', hidden_dropout_prob: 0.1, hidden_size: 384, id2label: { 0: 'LABEL_0' } },
  ...{ initializer_range: 0.02, intermediate_size: 1536, label2id: { LABEL_0: 0 } },
  ...{ layer_norm_eps: 1e-12, max_position_embeddings: 512, model_type: 'bert' },
  ...{ num_attention_heads: 12, num_hidden_layers: 6, pad_token_id: 0 },
  ...{ position_embedding_type: 'absolute', type_vocab_size: 2, use_cache: true },
  sentence_transformers: {
    ...{ activation_fn: 'torch.nn.modules.linear.Identity', version: '4.1.0.dev0' },
  },
  ...{ torch_dtype: 'float32', transformers_version: '4.52.0.dev0', vocab_size: 30522 },
};
const QWEN3 = {
  architectures: ['Qwen3ForSequenceClassification'],
  ...{ model_type: 'qwen3', vocab_size: 11, hidden_size: 8, intermediate_size: 12 },
  ...{ num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4 },
  ...{ max_position_embeddings: 6, tie_word_embeddings: false, pad_token_id: 2 },
  ...{ id2label: { 0: 'bad', 1: 'good' }, label2id: { bad: 0, good: 1 } },
  problem_type: 'multi_label_classification',
};
const parse = (fields: object) => parseSequenceClassifierConfig(JSON.stringify(fields));

const SIZES = { vocab_size: 11, hidden_size: 8, intermediate_size: 12, num_hidden_layers: 1 };
const CONFIGS: Readonly<Record<string, SequenceClassifierConfig>> = {
  bert: {
    base: resolveEncoderConfig({
      ...{ ...SIZES, num_attention_heads: 2, max_position_embeddings: 6, add_pooling_layer: true },
    }),
    labels: ['a', 'b', 'c'],
    problemType: 'single_label_classification',
    classifierDropout: 0.25,
  },
  qwen3: {
    base: resolveDecoderConfig({
      ...{ ...SIZES, model_type: 'qwen3', num_attention_heads: 2, max_position_embeddings: 6 },
      tie_word_embeddings: true,
    }),
    labels: ['relevance'],
    problemType: undefined,
    classifierDropout: undefined,
  },
};

it('configs of published classifiers are read, with their labels', () => {
  const { base, ...reranker } = parse(MARCO);
  expect(base).toMatchObject({ model_type: 'bert', hidden_size: 384, add_pooling_layer: true });
  expect(reranker).toEqual({
    ...{ labels: ['LABEL_0'], problemType: undefined, classifierDropout: undefined },
  });
  const decoder = parse(QWEN3);
  expect(decoder.base).toMatchObject({ model_type: 'qwen3', tie_word_embeddings: true });
  expect(decoder.labels).toEqual(['bad', 'good']);
  expect(decoder.problemType).toBe('multi_label_classification');
  expect(parse({ ...MARCO, id2label: undefined }).labels).toEqual(['LABEL_0', 'LABEL_1']);
  expect(parse({ ...MARCO, classifier_dropout: 0.2 }).classifierDropout).toBe(0.2);
});

it.each(Object.keys(CONFIGS))('the config of a %s is written so that it reads back', (name) => {
  const config = CONFIGS[name]!;
  const text = sequenceClassifierConfigText(config, { dtype: 'bf16' });
  expect(parseSequenceClassifierConfig(text)).toEqual(config);
  const { architectures, id2label, label2id, torch_dtype } = JSON.parse(text);
  expect({ architectures, id2label, label2id, torch_dtype }).toEqual({
    architectures: [`${{ bert: 'Bert', qwen3: 'Qwen3' }[name]}ForSequenceClassification`],
    id2label: Object.fromEntries(config.labels.entries()),
    label2id: Object.fromEntries(config.labels.map((label, id) => [label, id])),
    torch_dtype: 'bfloat16',
  });
});

it.each([
  [{ architectures: ['BertModel'] }, 'architectures to be BertForSequenceClassification'],
  [{ architectures: undefined }, 'architectures'],
  [{ model_type: 'roberta' }, 'model_type'],
  [{ problem_type: 'ranking' }, 'problem_type'],
  [{ classifier_dropout: 1 }, 'classifier_dropout'],
  [{ id2label: { 1: 'a' } }, 'id2label'],
  [{ id2label: undefined, num_labels: 0 }, 'num_labels'],
  [{ position_embedding_type: 'relative_key' }, 'position_embedding_type'],
])('a config with %j is refused by the name of the field', async (change, name) => {
  const error = await errorOf(() => parse({ ...MARCO, ...change }));
  expect(error instanceof FormatError || error instanceof NnConfigError).toBe(true);
  expect(error!.message).toContain(name);
});

it.each(Object.keys(CONFIGS))(
  'the weights of a %s are written under the names of the Hub and load back',
  async (name) => {
    const config = CONFIGS[name]!;
    const state = await stateDict(makeSequenceClassifier(makeDevice(), config, { seed: 3 }));
    const files = await filesWith(sequenceClassifierFiles(config, state));
    expect([...files.keys()]).toEqual(['model.safetensors', 'config.json']);
    const opened = await openSequenceClassifier(files);
    expect(opened.config).toEqual(config);
    const heads = { bert: ['classifier.weight', 'classifier.bias'], qwen3: ['score.weight'] }[
      name
    ]!;
    const names = [...opened.state.keys()];
    expect(names.filter((key) => !/^(bert|model)\./.test(key)).sort()).toEqual([...heads].sort());
    const device = makeDevice();
    const model = makeSequenceClassifier(device, opened.config, { deferInit: true });
    await loadStateDict(model, opened.state);
    expect(await stateDict(model)).toEqual(state);
  },
);

it('weights without a head, and with old names of norms, are told apart', async () => {
  const config = CONFIGS.bert!;
  const state = await stateDict(makeSequenceClassifier(makeDevice(), config, { seed: 3 }));
  const opened = async (rename: (name: string) => string | undefined) => {
    const renamed = [...state].flatMap(([name, tensor]) => {
      const other = rename(name);
      return other === undefined ? [] : ([[other, tensor]] as const);
    });
    const files = new MemoryFiles();
    await files.write('model.safetensors', [writeSafetensors(new Map(renamed))]);
    const text = sequenceClassifierConfigText(config);
    await files.write('config.json', [new TextEncoder().encode(text)]);
    return openSequenceClassifier(files);
  };
  const old = await opened((name) => name.replace('LayerNorm.weight', 'LayerNorm.gamma'));
  expect([...old.state.keys()].sort()).toEqual([...state.keys()].sort());
  const error = await errorOf(() =>
    opened((name) => (name.startsWith('classifier') ? undefined : name)),
  );
  expect(error?.message).toBe(
    'expected the weights of a classifier, got some without a head (classifier.weight or score.weight).',
  );
});
