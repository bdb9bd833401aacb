// These tests check what the metadata gets from a tokenizer's files, and what is refused by name.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { GgufTokenizerError, modelGguf } from '@shardweave/gguf';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { sentencePieceText } from '../../../tooling/test-kit/sentence-piece.ts';
import { bareModel } from './support/hub-models.ts';
import { bytesOf, readGguf } from './support/written.ts';

const folder = newFolder();

const TEMPLATE = {
  type: 'TemplateProcessing',
  single: [
    { SpecialToken: { id: '<|endoftext|>', type_id: 0 } },
    { Sequence: { id: 'A', type_id: 0 } },
  ],
  special_tokens: {
    '<|endoftext|>': { id: '<|endoftext|>', ids: [509], tokens: ['<|endoftext|>'] },
  },
};

describe('the metadata of a tokenizer', () => {
  it('names its tokens, their purposes, its merges and its way to split texts', async () => {
    const { metadata, json } = await written({});
    const tokens = metadata['tokenizer.ggml.tokens'] as string[];
    const types = metadata['tokenizer.ggml.token_type'] as number[];
    expect(metadata['tokenizer.ggml.model']).toBe('gpt2');
    expect(metadata['tokenizer.ggml.pre']).toBe('qwen2');
    expect(tokens).toHaveLength(520);
    expect([tokens[256], tokens[509], tokens[511], tokens[519]]).toEqual([
      Object.keys(json.model.vocab)[256],
      '<|endoftext|>',
      '<|im_end|>',
      '[PAD519]',
    ]);
    expect(types.slice(508)).toEqual([1, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 5]);
    expect(metadata['tokenizer.ggml.merges']).toEqual(json.model.merges);
  });

  it('has merges that come as pairs, and added tokens that are found in texts', async () => {
    const { metadata } = await written({
      json: (json) => {
        json.model.merges = json.model.merges.map((merge: string) => merge.split(' '));
        json.added_tokens[2].special = false;
      },
    });
    const plain = await written({});
    expect(metadata['tokenizer.ggml.merges']).toEqual(plain.metadata['tokenizer.ggml.merges']);
    expect((metadata['tokenizer.ggml.token_type'] as number[])[511]).toBe(4);
  });

  it('takes begin and end from tokenizer_config, then generation_config, then config', async () => {
    const idsOf = (metadata: Record<string, unknown>) =>
      ['bos_token_id', 'eos_token_id', 'padding_token_id', 'add_bos_token', 'add_eos_token'].map(
        (key) => metadata[`tokenizer.ggml.${key}`],
      );
    const own = await written({});
    // There is no begin token. The end token stands in for it, and is never put before a text.
    expect(idsOf(own.metadata)).toEqual([511, 511, 509, false, false]);
    const later = await written({
      texts: (texts) => {
        texts.set(
          'tokenizer_config.json',
          JSON.stringify({ bos_token: { content: '<|im_start|>' } }),
        );
        texts.set('generation_config.json', JSON.stringify({ eos_token_id: [7, 8] }));
      },
      config: { eos_token_id: 9, pad_token_id: 3 },
    });
    expect(idsOf(later.metadata)).toEqual([510, 7, 3, false, false]);
  });

  it('adds a begin token where the tokenizer does', async () => {
    const { metadata } = await written({
      json: (json) => {
        json.post_processor = { type: 'Sequence', processors: [json.post_processor, TEMPLATE] };
      },
    });
    expect(metadata['tokenizer.ggml.bos_token_id']).toBe(509);
    expect(metadata['tokenizer.ggml.add_bos_token']).toBe(true);
    expect(metadata['tokenizer.ggml.add_eos_token']).toBe(false);
  });

  it.each([
    [{ bos_token: '<|im_start|>', add_bos_token: true, add_eos_token: true }, true, true],
    [{ add_bos_token: true, add_eos_token: null }, false, false], // There is no token to add.
  ])('goes by tokenizer_config where that says what to add: %j', async (config, bos, eos) => {
    const { metadata } = await written({
      texts: (texts) =>
        texts.set('tokenizer_config.json', JSON.stringify({ eos_token: '<|im_end|>', ...config })),
    });
    expect(metadata['tokenizer.ggml.add_bos_token']).toBe(bos);
    expect(metadata['tokenizer.ggml.add_eos_token']).toBe(eos);
  });

  it('has the chat template, where a file of its own comes first', async () => {
    const inConfig = (template: unknown) => (texts: Map<string, string>) =>
      texts.set(
        'tokenizer_config.json',
        JSON.stringify({ eos_token: '<|im_end|>', chat_template: template }),
      );
    const templateOf = async (change: (texts: Map<string, string>) => void) =>
      (await written({ texts: change })).metadata['tokenizer.chat_template'];
    expect(await templateOf(inConfig('one'))).toBe('one');
    const named = [
      { name: 'tool_use', template: 'tools' },
      { name: 'default', template: 'two' },
    ];
    expect(await templateOf(inConfig(named))).toBe('two');
    expect(await templateOf(inConfig(undefined))).toBeUndefined();
    const file = (texts: Map<string, string>) =>
      inConfig('one')(texts).set('chat_template.jinja', 'three');
    expect(await templateOf(file)).toBe('three');
  });
});

describe("the metadata of SentencePiece's tokens", () => {
  it.each([
    ['Prepend and Replace', undefined, true],
    [
      'Metaspace',
      { type: 'Metaspace', replacement: '\u2581', prepend_scheme: 'never', split: false },
      false,
    ],
  ])(
    'has scores instead of merges, and says whether spaces are added: %s',
    async (_, metaspace, adds) => {
      const { metadata } = await written({
        vocabSize: 600,
        texts: (texts) => {
          const json = JSON.parse(sentencePieceText());
          if (metaspace !== undefined) {
            Object.assign(json, { normalizer: null, pre_tokenizer: metaspace });
          }
          texts.set('tokenizer.json', JSON.stringify(json));
          texts.set(
            'tokenizer_config.json',
            JSON.stringify({ bos_token: '<s>', eos_token: '</s>' }),
          );
        },
      });
      const json = JSON.parse(sentencePieceText());
      const tokens = metadata['tokenizer.ggml.tokens'] as string[];
      const scores = metadata['tokenizer.ggml.scores'] as number[];
      const types = metadata['tokenizer.ggml.token_type'] as number[];
      expect(metadata['tokenizer.ggml.model']).toBe('llama');
      expect(metadata['tokenizer.ggml.merges']).toBeUndefined();
      expect(metadata['tokenizer.ggml.unknown_token_id']).toBe(0);
      expect(metadata['tokenizer.ggml.add_space_prefix']).toBe(adds);
      expect(types.slice(0, 5)).toEqual([2, 3, 3, 6, 6]);
      const [first, last] = [json.model.merges[0], json.model.merges.at(-1)].map((merge: string) =>
        tokens.indexOf(merge.replace(' ', '')),
      ) as [number, number];
      const merged = scores.filter((score) => score !== 0);
      expect(scores[first]).toBe(Math.max(...merged));
      expect(scores[last]).toBe(Math.min(...merged));
    },
  );
});

describe('a tokenizer is refused', () => {
  // biome-ignore lint/suspicious/noExplicitAny: the file's JSON, changed anywhere.
  type Change = (json: any) => void;
  it.each<readonly [string, Change, RegExp]>([
    [
      'cut in an unknown way',
      (json) => {
        json.pre_tokenizer.pretokenizers[0].pattern.Regex = '\\s+';
      },
      /pre_tokenizer of gpt-2, smollm, llama-bpe, qwen2, got/,
    ],
    [
      'cut in none',
      (json) => {
        json.pre_tokenizer = null;
      },
      /got none/,
    ],
    [
      'with a space before its first word',
      (json) => {
        json.pre_tokenizer = { type: 'ByteLevel', add_prefix_space: true, use_regex: true };
      },
      /pre_tokenizer/,
    ],
    [
      'with words looked up before merges, as Llama 3 alone does',
      (json) => {
        json.model.ignore_merges = true;
      },
      /ignore_merges to be false beside the pre_tokenizer of qwen2/,
    ],
    [
      'without merges',
      (json) => {
        json.model.type = 'Unigram';
      },
      /got Unigram/,
    ],
    [
      'with marks in its merges',
      (json) => {
        json.model.end_of_word_suffix = '</w>';
      },
      /end_of_word_suffix/,
    ],
    [
      'that changes texts first',
      (json) => {
        json.normalizer = {
          type: 'Sequence',
          normalizers: [{ type: 'NFC' }, { type: 'Lowercase' }],
        };
      },
      /got Lowercase/,
    ],
    [
      'with tokens that take white space along',
      (json) => {
        json.added_tokens[0].rstrip = true;
      },
      /rstrip false/,
    ],
    [
      'with two tokens of a number',
      (json) => {
        json.added_tokens[0].id = 5;
      },
      /one token of number 5/,
    ],
    [
      'with more tokens than the model',
      (json) => {
        json.model.vocab.more = 520;
      },
      /below the model's vocab_size 520, got 520/,
    ],
    [
      'that puts two tokens before a text',
      (json) => {
        json.post_processor = { ...TEMPLATE, single: [TEMPLATE.single[0], ...TEMPLATE.single] };
      },
      /post_processor/,
    ],
    [
      'of another post-processor',
      (json) => {
        json.post_processor = { type: 'RobertaProcessing' };
      },
      /post_processor/,
    ],
  ])('a tokenizer %s is refused', async (_, json, message) => {
    await expect(written({ json })).rejects.toThrow(GgufTokenizerError);
    await expect(written({ json })).rejects.toThrow(message);
  });

  it.each<readonly [string, Change, RegExp]>([
    [
      'that looks whole words up',
      (json) => {
        json.model.ignore_merges = true;
      },
      /ignore_merges to be false/,
    ],
    [
      'that lacks a byte',
      (json) => {
        json.model.vocab['<0x0a>'] = json.model.vocab['<0x0A>'];
        delete json.model.vocab['<0x0A>'];
      },
      /got none for <0x0A>/,
    ],
    [
      'that has no token for what it lacks',
      (json) => {
        json.model.unk_token = null;
      },
      /got none for unk_token/,
    ],
    [
      'whose first word alone gets a space',
      (json) => {
        json.normalizer = null;
        json.pre_tokenizer = { type: 'Metaspace', prepend_scheme: 'first', split: false };
      },
      /spaces to be written as/,
    ],
    [
      'that does not merge a pair which makes a token',
      (json) => {
        json.model.merges.pop();
      },
      /every pair that makes a token to be a merge, got none of "▁a b"/,
    ],
    [
      'whose merges of a token are apart',
      (json) => {
        const { merges } = json.model;
        const twice = merges.findIndex(
          (merge: string, i: number) =>
            i > 0 && merge.replace(' ', '') === merges[i - 1].replace(' ', ''),
        );
        merges.push(...merges.splice(twice, 1));
      },
      /expected the merges of .* together/,
    ],
  ])("a file of SentencePiece's %s is refused", async (_, change, message) => {
    const texts = (given: Map<string, string>) => {
      const json = JSON.parse(sentencePieceText());
      change(json);
      given.set('tokenizer.json', JSON.stringify(json));
      given.set('tokenizer_config.json', JSON.stringify({ eos_token: '</s>' }));
    };
    const act = () => written({ texts, vocabSize: 600 });
    await expect(act()).rejects.toThrow(GgufTokenizerError);
    await expect(act()).rejects.toThrow(message);
  });

  it.each<readonly [string, (texts: Map<string, string>) => void, RegExp]>([
    [
      'that is not there',
      (texts) => texts.delete('tokenizer.json'),
      /tokenizer.json: expected one/,
    ],
    [
      'that is no JSON',
      (texts) => texts.set('tokenizer.json', '{'),
      /tokenizer.json: expected JSON/,
    ],
    ['without a vocabulary', (texts) => texts.set('tokenizer.json', '{}'), /model.vocab/],
    ['whose config is a list', (texts) => texts.set('tokenizer_config.json', '[]'), /an object/],
    ['without an end token', (texts) => texts.delete('tokenizer_config.json'), /at token 11/],
  ])('a file %s is refused', async (_, texts, message) => {
    await expect(written({ texts })).rejects.toThrow(GgufTokenizerError);
    await expect(written({ texts })).rejects.toThrow(message);
  });
});

interface Changes {
  // biome-ignore lint/suspicious/noExplicitAny: the file's JSON, changed anywhere.
  readonly json?: (json: any) => void;
  readonly texts?: (texts: Map<string, string>) => void;
  readonly config?: object;
  /** The rows of the model's table. The default is 520. */
  readonly vocabSize?: number;
}

/** Returns the metadata of a file, as @huggingface/gguf reads it. */
async function written({
  json: change,
  texts: changeTexts,
  config = {},
  vocabSize = 520,
}: Changes) {
  const { texts, state } = bareModel(vocabSize);
  texts.set('config.json', JSON.stringify({ ...JSON.parse(texts.get('config.json')!), ...config }));
  const json = JSON.parse(texts.get('tokenizer.json')!);
  change?.(json);
  texts.set('tokenizer.json', JSON.stringify(json));
  changeTexts?.(texts);
  const path = join(folder, 'written.gguf');
  writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' })));
  const { metadata } = await readGguf(path);
  return { metadata, json };
}
