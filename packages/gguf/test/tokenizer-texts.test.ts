// What a file's tokenizer becomes: the texts of a model directory, or an error that names the key.
// llama-cpp.test.ts compares the tokens that they make.

import { GgufTokenizerError, modelGguf } from '@shardweave/gguf';
import { type GgufValue, ggufTokenizerTexts, openGguf } from '@shardweave/gguf/read';
import { readTokenizerSettings } from '@shardweave/gguf/tokenizer-files';
import { describe, expect, it } from 'vitest';
import { sentencePieceText } from '../../../tooling/test-kit/sentence-piece.ts';
import { bareModel } from './support/hub-models.ts';
import { sourceOf } from './support/raw-gguf.ts';
import { bytesOf } from './support/written.ts';

type Metadata = Map<string, GgufValue>;

/** The metadata of a file that the writer made of texts. */
async function metadataOf(change: (texts: Map<string, string>) => void = () => {}) {
  const { texts, state } = bareModel(600);
  change(texts);
  const file = modelGguf({ texts, state }, { type: 'f16', name: 'x' });
  return openGguf(sourceOf(await bytesOf(file)));
}

const SENTENCE_PIECE = (texts: Map<string, string>) => {
  texts.set('tokenizer.json', sentencePieceText());
  const config = { bos_token: '<s>', eos_token: '</s>', add_bos_token: true };
  texts.set('tokenizer_config.json', JSON.stringify(config));
};

const parsed = (texts: ReadonlyMap<string, string>, name: string) => JSON.parse(texts.get(name)!);

describe('the texts of a tokenizer', async () => {
  const plain = await metadataOf();
  const pieces = await metadataOf(SENTENCE_PIECE);
  const withKeys = (gguf: typeof plain, change: (metadata: Metadata) => void) => {
    const metadata = new Map(gguf.metadata);
    change(metadata);
    return ggufTokenizerTexts({ ...gguf, metadata });
  };
  const set = (key: string, type: string, value: unknown) => (metadata: Metadata) => {
    metadata.set(`tokenizer.ggml.${key}`, { type, value } as GgufValue);
  };

  it('are those from which the file was written', () => {
    const own = JSON.parse(bareModel(600).texts.get('tokenizer.json')!);
    const json = parsed(ggufTokenizerTexts(plain), 'tokenizer.json');
    expect(json.model.vocab).toEqual(own.model.vocab);
    expect(json.model.merges).toEqual(own.model.merges);
    const added = (given: typeof own) =>
      given.added_tokens.map(({ id, content, special }: { [key: string]: unknown }) => [
        id,
        content,
        special,
      ]);
    expect(added(json)).toEqual(added(own));
    expect(json.normalizer).toEqual({ type: 'NFC' });
  });

  it("are SentencePiece's merges, by scores", () => {
    const own = JSON.parse(sentencePieceText());
    const { model, decoder } = parsed(ggufTokenizerTexts(pieces), 'tokenizer.json');
    expect(model.vocab).toEqual(own.model.vocab);
    const sorted = (merges: readonly string[]) => merges.toSorted();
    expect(sorted(model.merges)).toEqual(sorted(own.model.merges));
    // Merges of one token may come in any order.
    const tokens = (merges: readonly string[]) => merges.map((merge) => merge.replace(' ', ''));
    expect(tokens(model.merges)).toEqual(tokens(own.model.merges));
    expect([model.byte_fallback, model.unk_token]).toEqual([true, '<unk>']);
    expect(decoder.decoders.at(-1)).toEqual({ type: 'Strip', content: ' ', start: 1, stop: 0 });
    const bare = withKeys(pieces, set('add_space_prefix', 'bool', false));
    expect(parsed(bare, 'tokenizer.json').normalizer.normalizers).toHaveLength(1);
  });

  it('become the same metadata when they are written again', async () => {
    for (const gguf of [plain, pieces]) {
      const again = await metadataOf((texts) => {
        for (const [name, text] of ggufTokenizerTexts(gguf)) {
          texts.set(name, text);
        }
      });
      const valuesOf = ({ metadata }: typeof gguf) =>
        [...metadata]
          .filter(([key]) => key.startsWith('tokenizer'))
          .map(([key, { value }]) => [key, value]);
      expect(Object.fromEntries(valuesOf(again))).toEqual(Object.fromEntries(valuesOf(gguf)));
    }
  });

  it('name what begins and ends a text, and how conversations are written', () => {
    const texts = withKeys(plain, (metadata) => {
      set('bos_token_id', 'u32', 509)(metadata);
      set('eot_token_id', 'u32', 510)(metadata);
      set('add_bos_token', 'bool', true)(metadata);
      metadata.set('tokenizer.chat_template', { type: 'string', value: 'the template' });
    });
    const { config, ids, chatTemplate } = readTokenizerSettings(texts);
    expect(config).toMatchObject({
      bos_token: '<|endoftext|>',
      eos_token: '<|im_end|>',
      add_bos_token: true,
    });
    expect(ids[0]!.eos_token_id).toEqual([511, 510]);
    expect(chatTemplate).toBe('the template');
    const { post_processor: post } = parsed(texts, 'tokenizer.json');
    expect(post.single.map((part: object) => Object.keys(part)[0])).toEqual([
      'SpecialToken',
      'Sequence',
    ]);
    expect(post.special_tokens['<|endoftext|>'].ids).toEqual([509]);
    expect(parsed(ggufTokenizerTexts(plain), 'tokenizer.json').post_processor).toBeNull();
  });

  it.each<[string, string | undefined, boolean]>([
    ['llama-bpe', 'llama3', true],
    ['qwen2', 'deepseek-r1-qwen', false],
  ])('have the steps of %s under another name: %s', (_, pre, addsBos) => {
    const texts = withKeys(plain, (metadata) => {
      set('pre', 'string', pre)(metadata);
      metadata.delete('tokenizer.ggml.add_bos_token');
    });
    expect(parsed(texts, 'tokenizer.json').model.ignore_merges).toBe(addsBos);
    expect(parsed(texts, 'tokenizer_config.json').add_bos_token).toBe(addsBos);
  });

  it('are none where the file has no tokenizer', () => {
    expect(withKeys(plain, set('model', 'string', 'no_vocab')).size).toBe(0);
    expect(withKeys(plain, (metadata) => metadata.clear()).size).toBe(0);
  });

  it.each<[string, (metadata: Metadata) => void, RegExp]>([
    [
      'of another kind',
      set('model', 'string', 'bert'),
      /model: expected gpt2 or llama, got "bert"/,
    ],
    ['named like a property', set('model', 'string', 'constructor'), /got "constructor"/],
    [
      'that cuts in another way',
      set('pre', 'string', 'chatglm-bpe'),
      /pre: expected gpt-2, .* got "chatglm-bpe"/,
    ],
    [
      'without tokens',
      (metadata) => metadata.delete('tokenizer.ggml.tokens'),
      /tokens: expected the vocabulary/,
    ],
    [
      'without merges',
      (metadata) => metadata.delete('tokenizer.ggml.merges'),
      /merges: expected them/,
    ],
    [
      'with numbers as merges',
      set('merges', 'i32[]', [1]),
      /merges: expected string\[\], got i32\[\]/,
    ],
    [
      'with too few types',
      set('token_type', 'i32[]', [1]),
      /token_type: expected one for each of 600 tokens, got 1/,
    ],
    [
      'with an end beyond its tokens',
      set('eos_token_id', 'u32', 600),
      /eos_token_id: expected one of 600 tokens, got 600/,
    ],
    [
      'with a token twice',
      (metadata) => {
        const tokens = metadata.get('tokenizer.ggml.tokens')!.value as readonly string[];
        set(
          'tokens',
          'string[]',
          tokens.map((text, id) => (id === 7 ? tokens[5] : text)),
        )(metadata);
      },
      /once, got it as 5 and 7/,
    ],
    ['of scores without them', set('model', 'string', 'llama'), /scores: expected them/],
  ])('are refused %s', (_, change, message) => {
    expect(() => withKeys(plain, change)).toThrow(GgufTokenizerError);
    expect(() => withKeys(plain, change)).toThrow(message);
  });
});
