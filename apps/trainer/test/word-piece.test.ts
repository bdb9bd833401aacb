// WordPiece, the tokenizer of BERT and its kin, is compared with a build of the Rust library that
// models were trained with. Every character of the texts is a token, so that no difference hides
// behind an unknown word.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tokenizer as RustTokenizer } from '@anush008/tokenizers';
import { describe, expect, it } from 'vitest';
import { textsOf } from '../../../packages/onnx/test/support/small-encoder.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { Framer } from '../src/data/example-file.js';
import { loadTokenizer } from '../src/data/tokenizer.js';
import { HARD_TEXT, hardTexts } from './support/hard-text.js';

const SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'];
/** Chinese characters beyond the first plane, and those beside their blocks. */
const CHINESE = [0x20000, 0x2a6df, 0x2a6e0, 0x2a700, 0x2b81f, 0x2b820, 0x2b91f, 0x2b920, 0x2ceaf]
  .concat([0x2ceb0, 0x2f7ff, 0x2f800, 0x2fa1f, 0x2fa20, 0x30000])
  .map((code) => `a${String.fromCodePoint(code)}b`);
const TEXTS = [...CHINESE, HARD_TEXT, ...HARD_TEXT.split('\n\n'), ...hardTexts(1500)];

/** Writes a tokenizer of every character as it is, in lower case, and without its marks. */
function writeTokenizer(fields: object): string {
  const directory = newFolder();
  const all = TEXTS.join('') + TEXTS.join('').toLowerCase() + TEXTS.join('').normalize('NFD');
  const characters = [...new Set(all + all.normalize('NFD').toLowerCase())].filter(
    (character) => character.trim() !== '',
  );
  const words = ['the', 'and', 'func', '##tion', 'pre', '##12', '20', '##24', 'cafe'];
  const tokens = [...SPECIAL, ...characters, ...characters.map((one) => `##${one}`), ...words];
  const vocab = Object.fromEntries([...new Set(tokens)].map((token, id) => [token, id]));
  const texts = textsOf({ vocab_size: 5 } as never);
  const json = JSON.parse(texts.get('tokenizer.json')!);
  json.normalizer = { ...json.normalizer, ...fields };
  json.model.vocab = vocab;
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(json));
  writeFileSync(join(directory, 'tokenizer_config.json'), texts.get('tokenizer_config.json')!);
  return directory;
}

describe.each([
  ['in lower case', { lowercase: true, strip_accents: null }],
  ['with case and marks', { lowercase: false, strip_accents: false }],
  ['without case, with marks', { lowercase: true, strip_accents: false }],
])('WordPiece %s', (_, fields) => {
  const directory = writeTokenizer(fields);
  const rust = RustTokenizer.fromFile(join(directory, 'tokenizer.json'));

  it("has the Rust build's tokens of hard texts", async () => {
    const tokenizer = await loadTokenizer('model', directory);
    const differing: string[] = [];
    for (const text of TEXTS) {
      const ids = (await rust.encode(text, null, { addSpecialTokens: false })).getIds();
      if ([...tokenizer.encode(text)].join() !== ids.join()) {
        differing.push(JSON.stringify(text));
      }
    }
    expect(differing).toEqual([]);
  });

  it('puts the same tokens around a text and a pair', async () => {
    const { frame, encode } = await loadTokenizer('model', directory);
    const framer = new Framer(frame, { most: 512, hasPairs: true });
    for (const [first, second] of [
      ['Call me', 'Ishmael.'],
      ['caf\u00e9', ''],
    ]) {
      const alone = await rust.encode(first!, null);
      expect([...(framer.text(encode(first!)).ids as number[])]).toEqual(alone.getIds());
      const both = await rust.encode(first!, second!);
      const pair = framer.pair(encode(first!), encode(second!));
      expect([...(pair.ids as number[])]).toEqual(both.getIds());
      expect([...(pair.tokenTypes as Uint32Array)]).toEqual(both.getTypeIds());
    }
  });
});
