// Text is streamed in whole characters, and without any part of a stop text.

import { expect, it } from 'vitest';
import { loadTokenizer } from '../src/data/tokenizer.js';
import { TextStream } from '../src/generate/text-stream.js';

const bytes = await loadTokenizer('byte');

/**
 * Returns what the stream emits after each byte of a text or each token. The last part comes at the
 * end.
 */
function parts(tokens: Iterable<number>, stop: readonly string[] = [], prompt = ''): string[] {
  const stream = new TextStream((ids) => bytes.decode(ids), {
    prompt: [...bytes.encode(prompt)],
    stop,
  });
  const found: string[] = [];
  for (const token of tokens) {
    const { text, isStopped } = stream.add(token);
    found.push(text);
    if (isStopped) {
      return [...found, 'stopped'];
    }
  }
  return [...found, stream.end().text];
}

it('gives a character with its last byte, whatever stood before', () => {
  const text = 'a\u00e9\u4e2d\u{1f642}b';
  const expected = ['a', '', '\u00e9', '', '', '\u4e2d', '', '', '', '\u{1f642}', 'b', ''];
  expect(parts(bytes.encode(text))).toEqual(expected);
  expect(parts(bytes.encode(text), [], '\u4e2d\u4e2d\u{1f642}')).toEqual(expected);
});

it('gives what is no character when the next one comes, or none', () => {
  expect(parts([0xff, 0x61, 0xe4, 0xb8])).toEqual(['', '\ufffda', '', '', '\ufffd']);
});

it('writes a first word as it stands behind the prompt', () => {
  // Tokens are words. As in SentencePiece, the space before the first one is left out.
  const decode = (ids: Iterable<number>) =>
    [...ids]
      .map((id) => ` w${id}`)
      .join('')
      .slice(1);
  const stream = new TextStream(decode, { prompt: [1, 2], stop: [] });
  expect([stream.add(3).text, stream.add(4).text]).toEqual([' w3', ' w4']);
});

it('ends before a stop text, and holds back what may become one', () => {
  const say = (text: string, ...stop: string[]) => parts(bytes.encode(text), stop);
  expect(say('abXYZc', 'XYZ')).toEqual(['a', 'b', '', '', '', 'stopped']);
  expect(say('aXXYb', 'XYZ')).toEqual(['a', '', 'X', '', 'XYb', '']);
  expect(say('abcX', 'XYZ')).toEqual(['a', 'b', 'c', '', 'X']);
  expect(say('one two', 'wo', 'tw')).toEqual(['o', 'n', 'e', ' ', '', '', 'stopped']);
  expect(say('\u{1f642}', '\u{1f642}')).toEqual(['', '', '', '', 'stopped']);
});
