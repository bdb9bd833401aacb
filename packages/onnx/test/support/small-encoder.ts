// A small BERT with a classifier, as a directory of the Hub has it, and what our own encoder
// computes with the same weights.

import { type HostTensor, loadStateDict } from '@shardweave/nn';
import {
  Encoder,
  type EncoderConfig,
  encoderConfigText,
  resolveEncoderConfig,
} from '@shardweave/nn/embedding';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

/** Widths that are no whole number of blocks, so that rows are filled up in q8. */
export const SMALL: EncoderConfig = resolveEncoderConfig({
  vocab_size: 64,
  hidden_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  intermediate_size: 100,
  max_position_embeddings: 32,
  add_pooling_layer: true,
});
export const LABELS = ['calm', 'storm', 'fog'];

const WORDS =
  'call me ishmael some years ago never mind how long precisely having little or no money in my ' +
  'purse and nothing particular to interest on shore i thought would sail about a the watery part';
const PIECES = ['##s', '##ed', '##ing', '##ly', '.', ',', '-', '!'];
const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'];

/** The texts of a directory: the configuration, and a tokenizer of WordPiece. */
export function textsOf(config: EncoderConfig): Map<string, string> {
  const tokens = [...SPECIAL, ...PIECES, ...new Set(WORDS.split(' '))].slice(0, config.vocab_size);
  const vocab = Object.fromEntries(tokens.map((token, id) => [token, id]));
  const special = (id: string, type_id = 0) => ({ SpecialToken: { id, type_id } });
  const text = (id: string, type_id = 0) => ({ Sequence: { id, type_id } });
  const ids = (id: string) => ({ id, ids: [vocab[id]], tokens: [id] });
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  const tokenizer = {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: SPECIAL.map((content, id) => ({ id, content, special: true, ...flags })),
    normalizer: {
      ...{ type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true },
      ...{ strip_accents: null, lowercase: true },
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing',
      single: [special('[CLS]'), text('A'), special('[SEP]')],
      pair: [special('[CLS]'), text('A'), special('[SEP]'), text('B', 1), special('[SEP]', 1)],
      special_tokens: { '[CLS]': ids('[CLS]'), '[SEP]': ids('[SEP]') },
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      ...{ type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##' },
      ...{ max_input_chars_per_word: 100, vocab },
    },
  };
  const settings = {
    ...{ tokenizer_class: 'BertTokenizer', do_lower_case: true, model_max_length: 32 },
    ...{ unk_token: '[UNK]', cls_token: '[CLS]', sep_token: '[SEP]', pad_token: '[PAD]' },
    mask_token: '[MASK]',
  };
  const id2label = Object.fromEntries(LABELS.entries());
  const architectures = ['BertForSequenceClassification'];
  const fields = { ...JSON.parse(encoderConfigText(config)), architectures, id2label };
  return new Map(
    Object.entries({
      'config.json': fields,
      'tokenizer.json': tokenizer,
      'tokenizer_config.json': settings,
    }).map(([name, value]) => [name, JSON.stringify(value)]),
  );
}

/** Random weights of a classifier as the Hub has them; `scale` is the spread of matrices. */
export function stateOf(config: EncoderConfig, { scale = 0.2 } = {}): Map<string, HostTensor> {
  const { hidden_size: width, intermediate_size: inner } = config;
  const random = generator();
  const state = new Map<string, HostTensor>();
  const add = (name: string, shape: readonly number[], { spread = scale, mean = 0 } = {}) => {
    const count = shape.reduce((product, size) => product * size, 1);
    const values = Float32Array.from({ length: count }, () => mean + spread * random());
    state.set(name, { dtype: 'f32', shape, data: new Uint8Array(values.buffer) });
  };
  const linear = (name: string, out: number, into: number) => {
    add(`${name}.weight`, [out, into]);
    add(`${name}.bias`, [out]);
  };
  const norm = (name: string) => {
    add(`${name}.weight`, [width], { mean: 1 });
    add(`${name}.bias`, [width]);
  };
  const table = (name: string, rows: number) =>
    add(`bert.embeddings.${name}_embeddings.weight`, [rows, width], { spread: 1 });
  table('word', config.vocab_size);
  table('position', config.max_position_embeddings);
  table('token_type', config.type_vocab_size);
  norm('bert.embeddings.LayerNorm');
  for (let i = 0; i < config.num_hidden_layers; i++) {
    const path = `bert.encoder.layer.${i}`;
    for (const part of ['query', 'key', 'value']) {
      linear(`${path}.attention.self.${part}`, width, width);
    }
    linear(`${path}.attention.output.dense`, width, width);
    norm(`${path}.attention.output.LayerNorm`);
    linear(`${path}.intermediate.dense`, inner, width);
    linear(`${path}.output.dense`, width, inner);
    norm(`${path}.output.LayerNorm`);
  }
  linear('bert.pooler.dense', width, width);
  linear('classifier', LABELS.length, width);
  return state;
}

let backend: ReturnType<typeof createCpuBackend> | undefined;

/** Ends the device of all own models. */
export async function closeOwn(): Promise<void> {
  await (await backend)?.dispose();
  backend = undefined;
}

/** What our encoder and a plain product for the classifier make of one text. */
export async function ownModel(config: EncoderConfig, state: ReadonlyMap<string, HostTensor>) {
  backend ??= createCpuBackend({ threads: 1 });
  const device = new Device(await backend);
  const model = new Encoder(device, config).eval();
  const own = [...state].filter(([name]) => name.startsWith('bert.'));
  await loadStateDict(model, new Map(own.map(([name, tensor]) => [name.slice(5), tensor])));
  const run = (ids: readonly number[], types: readonly number[], isPooled: boolean) =>
    device.scope(async () => {
      const row = (values: readonly number[]) =>
        device.tensor(Int32Array.from(values), [1, values.length]);
      const result = await model.call(row(ids), { tokenTypes: row(types), isPooled });
      return Float32Array.from(await result.toArray());
    });
  const floats = (name: string) => {
    const { data } = state.get(name)!;
    return new Float32Array(data.buffer, data.byteOffset, data.byteLength / 4);
  };
  return {
    rows: (ids: readonly number[], types = ids.map(() => 0)) => run(ids, types, false),
    /** The pooler's row of a text. */
    pooled: (ids: readonly number[], types = ids.map(() => 0)) => run(ids, types, true),
    async logits(ids: readonly number[], types = ids.map(() => 0)): Promise<number[]> {
      const pooled = await this.pooled(ids, types);
      const weight = floats('classifier.weight');
      return [...floats('classifier.bias')].map((bias, label) =>
        pooled.reduce((sum, x, i) => sum + x * weight[label * pooled.length + i]!, bias),
      );
    },
  };
}

/** Numbers of about one, from minus three to three, the same ones each time. */
function generator(): () => number {
  let state = 7;
  const uniform = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  return () => 2 * (uniform() + uniform() + uniform()) - 3;
}

/** The cosine of the angle between two rows of numbers. */
export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let [product, squareA, squareB] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    product += a[i]! * b[i]!;
    squareA += a[i]! ** 2;
    squareB += b[i]! ** 2;
  }
  return product / Math.sqrt(squareA * squareB);
}
