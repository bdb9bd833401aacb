// A small WordPiece tokenizer, and encoders with random values in every tensor.
import { fromF32Array } from '@shardweave/dtypes';
import { type HostTensor, stateDict } from '@shardweave/nn';
import { Encoder, type EncoderConfig, encoderConfigText } from '@shardweave/nn/embedding';
import type { Device } from '@shardweave/tensor-core';

const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'];
const LETTERS = [...'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789éß'];
const WORDS = [
  'call',
  'me',
  'ishmael',
  'some',
  'years',
  'ago',
  'the',
  'ship',
  'un',
  'Grüße',
  'naive',
];
const ENDS = ['##ment', '##s', '##ing', '##able', '##ed', '##ship', '##üße'];
const SIGNS = [...'.,-!?\'"()[]{}<>=+*/|;:^`~$%&@#_你好世界'];

/** The texts of a tokenizer's files. It has every letter, as the beginning of a word and later. */
export function wordPieceTexts({ lowercase = true } = {}): Map<string, string> {
  const tokens = [
    ...SPECIAL,
    ...LETTERS,
    ...LETTERS.map((x) => `##${x}`),
    ...WORDS,
    ...ENDS,
    ...SIGNS,
  ];
  const json = {
    version: '1.0',
    added_tokens: SPECIAL.map((content, id) => ({ id, content, special: true, normalized: false })),
    normalizer: {
      type: 'BertNormalizer',
      ...{ clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase },
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing',
      single: [
        { SpecialToken: { id: '[CLS]', type_id: 0 } },
        { Sequence: { id: 'A', type_id: 0 } },
        { SpecialToken: { id: '[SEP]', type_id: 0 } },
      ],
      pair: [],
      special_tokens: {
        '[CLS]': { id: '[CLS]', ids: [2], tokens: ['[CLS]'] },
        '[SEP]': { id: '[SEP]', ids: [3], tokens: ['[SEP]'] },
      },
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece',
      unk_token: '[UNK]',
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 100,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    },
  };
  const config = {
    ...{ tokenizer_class: 'BertTokenizer', do_lower_case: lowercase, unk_token: '[UNK]' },
    ...{ pad_token: '[PAD]', mask_token: '[MASK]', cls_token: '[CLS]', sep_token: '[SEP]' },
  };
  return new Map([
    ['tokenizer.json', JSON.stringify(json)],
    ['tokenizer_config.json', JSON.stringify(config)],
  ]);
}

/** The fields of an encoder of two layers. The table has rows beyond the tokenizer's tokens. */
export const BERT: Partial<EncoderConfig> = {
  ...{ vocab_size: 224, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2 },
  ...{ num_attention_heads: 4, max_position_embeddings: 64, layer_norm_eps: 1e-12 },
};

/** An encoder with random values in every tensor, norms and biases too, and its files. */
export async function randomEncoder(device: Device, change: Partial<EncoderConfig> = {}) {
  const model = new Encoder(device, { ...BERT, ...change }, { seed: 1 }).eval() as Encoder;
  let seed = 7;
  const random = () => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed / 2_147_483_647 - 0.5;
  };
  const state = new Map<string, HostTensor>();
  for (const [name, tensor] of await stateDict(model)) {
    // Gains around 1 keep texts apart, where biases alone would be the result.
    const [mean, scale] = name.endsWith('.LayerNorm.weight') ? [1, 1] : [0, 0.5];
    const values = Float32Array.from(
      { length: tensor.data.byteLength / 4 },
      () => mean + scale * random(),
    );
    state.set(name, { ...tensor, data: fromF32Array(values, 'f32') });
  }
  const texts = new Map([['config.json', encoderConfigText(model.config)], ...wordPieceTexts()]);
  return { model, state, texts };
}
