// An encoder's files: the config.json of published models, field by field, and weights as others
// write them.

import {
  FormatError,
  type HostTensor,
  loadStateDict,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import {
  Encoder,
  type EncoderConfig,
  encoderConfigText,
  encoderFiles,
  openEncoder,
  parseEncoderConfig,
  resolveEncoderConfig,
} from '@shardweave/nn/embedding';
import { describe, expect, it } from 'vitest';
import { filesWith, MemoryFiles } from './support/memory-files.js';
import { makeDevice } from './support/support.js';

/** The config.json of all-MiniLM-L6-v2, as the Hub has it. */
const MINILM = {
  _name_or_path: 'nreimers/MiniLM-L6-H384-uncased',
  ...{ architectures: ['BertModel'], attention_probs_dropout_prob: 0.1 },
  ...{ gradient_checkpointing: false, hidden_act: 'gelu', hidden_dropout_prob: 0.1 },
  ...{ hidden_size: 384, initializer_range: 0.02, intermediate_size: 1536 },
  ...{ layer_norm_eps: 1e-12, max_position_embeddings: 512, model_type: 'bert' },
  ...{ num_attention_heads: 12, num_hidden_layers: 6, pad_token_id: 0 },
  ...{ position_embedding_type: 'absolute', transformers_version: '4.8.2' },
  ...{ type_vocab_size: 2, use_cache: true, vocab_size: 30522 },
};
/** Those of bge-small-en-v1.5, e5-small-v2 and bert-base-multilingual-cased. */
const REAL: readonly object[] = [
  {
    ...MINILM,
    ...{ _name_or_path: 'bge-small-en/', classifier_dropout: null },
    ...{ id2label: { 0: 'LABEL_0' }, label2id: { LABEL_0: 0 }, num_hidden_layers: 12 },
    ...{ torch_dtype: 'float32', transformers_version: '4.30.0' },
  },
  { ...MINILM, tokenizer_class: 'BertTokenizer', num_hidden_layers: 12, classifier_dropout: null },
  {
    ...MINILM,
    ...{ architectures: ['BertForMaskedLM'], directionality: 'bidi', vocab_size: 119547 },
    ...{ hidden_size: 768, intermediate_size: 3072, pooler_fc_size: 768, num_hidden_layers: 12 },
    ...{
      pooler_num_attention_heads: 12,
      pooler_num_fc_layers: 3,
      pooler_type: 'first_token_transform',
    },
    pooler_size_per_head: 128,
  },
];
const parse = (fields: object) => parseEncoderConfig(JSON.stringify(fields));

const CONFIG = resolveEncoderConfig({
  ...{ vocab_size: 11, hidden_size: 8, intermediate_size: 12, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, max_position_embeddings: 6 },
});

describe('config.json', () => {
  it('the config of MiniLM is read, and written so that it reads back', () => {
    const config = parse(MINILM);
    expect(config).toEqual({
      ...{ model_type: 'bert', vocab_size: 30522, hidden_size: 384, num_hidden_layers: 6 },
      ...{ num_attention_heads: 12, intermediate_size: 1536, hidden_act: 'gelu' },
      ...{ hidden_dropout_prob: 0.1, attention_probs_dropout_prob: 0.1, type_vocab_size: 2 },
      ...{ max_position_embeddings: 512, initializer_range: 0.02, layer_norm_eps: 1e-12 },
      ...{ pad_token_id: 0, add_pooling_layer: false },
    });
    const text = encoderConfigText(config, { dtype: 'bf16' });
    expect(parseEncoderConfig(text)).toEqual(config);
    const { _name_or_path, gradient_checkpointing, transformers_version, use_cache, ...told } =
      MINILM;
    expect(JSON.parse(text)).toEqual({ ...told, is_decoder: false, torch_dtype: 'bfloat16' });
    const pooled = { ...config, add_pooling_layer: true };
    expect(parseEncoderConfig(encoderConfigText(pooled))).toEqual(pooled);
  });

  it('configs of other published models are read', () => {
    expect(REAL.map((fields) => parse(fields).num_hidden_layers)).toEqual([12, 12, 12]);
  });

  it.each([
    [{ position_embedding_type: 'relative_key' }, 'position_embedding_type'],
    [{ hidden_act: 'relu' }, 'hidden_act'],
    [{ is_decoder: true }, 'is_decoder'],
    [{ add_cross_attention: true }, 'add_cross_attention'],
    [{ model_type: 'xlm-roberta' }, 'model_type to be bert, got "xlm-roberta"'],
    [{ model_type: undefined }, 'model_type'],
    [{ architectures: ['BertLMHeadModel'] }, 'architectures'],
    [{ embedding_size: 128 }, 'embedding_size'],
  ])('a config that asks for %j is refused by the name of the field', (change, name) => {
    expect(() => parse({ ...MINILM, ...change })).toThrow(name);
  });

  it.each(['{', '[]', 'null'])('the text %s is refused', (text) => {
    expect(() => parseEncoderConfig(text)).toThrow(FormatError);
  });
});

const bytesOf = (state: ReadonlyMap<string, HostTensor>) =>
  new Map([...state].map(([name, { data }]) => [name, [...data]]));

async function loaded(files: MemoryFiles) {
  const { config, state } = await openEncoder(files);
  const model = new Encoder(makeDevice(), config, { seed: 9, deferInit: true });
  await loadStateDict(model, state);
  return { config, bytes: bytesOf(await stateDict(model)) };
}

const stateOf = (config: EncoderConfig) =>
  stateDict(new Encoder(makeDevice(), config, { seed: 3 }));

/** Files with these weights, and the config.json of CONFIG. */
async function foreign(state: ReadonlyMap<string, HostTensor>): Promise<MemoryFiles> {
  const files = new MemoryFiles();
  await files.write('model.safetensors', [writeSafetensors(state)]);
  await files.write('config.json', [new TextEncoder().encode(encoderConfigText(CONFIG))]);
  return files;
}

describe('weights', () => {
  it.each([false, true])(
    'are written in one file or in shards and load back (pooler: %s)',
    async (hasPooler) => {
      const config = { ...CONFIG, add_pooling_layer: hasPooler };
      const state = await stateOf(config);
      const whole = await filesWith(encoderFiles(config, state));
      expect([...whole.keys()]).toEqual(['model.safetensors', 'config.json']);
      expect(await loaded(whole)).toEqual({ config, bytes: bytesOf(state) });
      const shards = await filesWith(encoderFiles(config, state, { maxFileBytes: 1000 }));
      expect(shards.size).toBeGreaterThan(4);
      expect(await loaded(shards)).toEqual({ config, bytes: bytesOf(state) });
      const half = await filesWith(encoderFiles(config, state, { dtype: 'bf16' }));
      expect(JSON.parse(half.text('config.json')).torch_dtype).toBe('bfloat16');
    },
  );

  it('have the names and shapes of BertModel', async () => {
    const state = await stateOf({ ...CONFIG, num_hidden_layers: 1, add_pooling_layer: true });
    const at = 'encoder.layer.0.';
    const linear = (name: string, shape: readonly number[]) => [
      [`${name}.weight`, shape],
      [`${name}.bias`, shape.slice(0, 1)],
    ];
    expect([...state].map(([name, { shape }]) => [name, shape])).toEqual([
      ['embeddings.word_embeddings.weight', [11, 8]],
      ['embeddings.position_embeddings.weight', [6, 8]],
      ['embeddings.token_type_embeddings.weight', [2, 8]],
      ...linear('embeddings.LayerNorm', [8]),
      ...['query', 'key', 'value'].flatMap((part) => linear(`${at}attention.self.${part}`, [8, 8])),
      ...linear(`${at}attention.output.dense`, [8, 8]),
      ...linear(`${at}attention.output.LayerNorm`, [8]),
      ...linear(`${at}intermediate.dense`, [12, 8]),
      ...linear(`${at}output.dense`, [8, 12]),
      ...linear(`${at}output.LayerNorm`, [8]),
      ...linear('pooler.dense', [8, 8]),
    ]);
  });

  it('weights with a prefix, heads and older names of others load without the heads', async () => {
    const config = { ...CONFIG, add_pooling_layer: true };
    const state = await stateOf(config);
    const named = [...state].map(([name, tensor]) => {
      const old = name.replace('LayerNorm.weight', 'LayerNorm.gamma');
      return [`bert.${old.replace('LayerNorm.bias', 'LayerNorm.beta')}`, tensor] as const;
    });
    const foreigner: HostTensor = { dtype: 'f32', shape: [8], data: new Uint8Array(32) };
    const heads = ['cls.predictions.bias', 'cls.seq_relationship.weight', 'classifier.bias'];
    const others = [...heads, 'bert.embeddings.position_ids'].map(
      (name) => [name, foreigner] as const,
    );
    const files = await foreign(new Map([...named, ...others]));
    expect(await loaded(files)).toEqual({ config, bytes: bytesOf(state) });
  });

  it('weights of which two stand for one, or without a config.json, are refused', async () => {
    const state = await stateOf(CONFIG);
    const name = 'embeddings.LayerNorm.bias';
    const twice = await foreign(new Map([...state, [`bert.${name}`, state.get(name)!]]));
    await expect(openEncoder(twice)).rejects.toThrow(`expected '${name}' once, got it twice`);
    const files = await foreign(state);
    files.delete('config.json');
    await expect(openEncoder(files)).rejects.toThrow(FormatError);
    await expect(openEncoder(files)).rejects.toThrow('config.json');
  });
});
