// Trains byte-level merges (BPE) on Moby Dick. The result is a tokenizer of 512 tokens for tests,
// whose words and merges are real. `node tooling/tokenizer/train-bpe.mjs` writes tokenizer.json
// beside this script, with the same bytes each time.
import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readNovel } from '../tsup/novel.mjs';

const VOCABULARY = 512;
const SPECIAL = ['<|endoftext|>', '<|im_start|>', '<|im_end|>'];
/**
 * The pattern by which Qwen 2 cuts texts, in which each digit stands alone. Its pieces are
 * contained in the pieces of every other pattern, so merges within them are valid there too.
 */
const PATTERN = [
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
  '[^\\r\\n\\p{L}\\p{N}]?\\p{L}+',
  '\\p{N}',
  ' ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*',
  '\\s*[\\r\\n]+',
  '\\s+(?!\\S)',
  '\\s+',
].join('|');

const FOLDER = dirname(fileURLToPath(import.meta.url));

/** @returns {string} the text of tokenizer.json */
export function trainTokenizer() {
  const alphabet = byteAlphabet();
  const merges = trainMerges(countWords(readNovel(), alphabet), VOCABULARY - 256 - SPECIAL.length);
  const tokens = [...alphabet, ...merges.map(([left, right]) => left + right)];
  const byteLevel = { add_prefix_space: false, trim_offsets: false, use_regex: false };
  const json = {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: SPECIAL.map((content, index) => ({
      id: tokens.length + index,
      content,
      single_word: false,
      lstrip: false,
      rstrip: false,
      normalized: false,
      special: true,
    })),
    normalizer: { type: 'NFC' },
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: PATTERN }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', ...byteLevel },
      ],
    },
    post_processor: { type: 'ByteLevel', ...byteLevel },
    decoder: { type: 'ByteLevel', ...byteLevel },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: '',
      end_of_word_suffix: '',
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
      merges: merges.map((pair) => pair.join(' ')),
    },
  };
  return `${JSON.stringify(json, undefined, 1)}\n`;
}

/** How often each word occurs, with its bytes written as characters of the alphabet. */
function countWords(text, alphabet) {
  const encoder = new TextEncoder();
  // Node 20 has no flags for a part of a pattern.
  const pattern = PATTERN.replace(
    /\(\?i:(.*?)\)/,
    (_, part) =>
      `(?:${part.replaceAll(/[a-z]/g, (letter) => `[${letter}${letter.toUpperCase()}]`)})`,
  );
  const counts = new Map();
  for (const [word] of text.matchAll(new RegExp(pattern, 'gu'))) {
    counts.set(word, (counts.get(word) ?? 0) + 1);
  }
  return [...counts].map(([word, count]) => {
    return { symbols: [...encoder.encode(word)].map((byte) => alphabet[byte]), count };
  });
}

/**
 * Replaces the most frequent pair by one symbol, again and again. Of equally frequent pairs the
 * first one by text comes first.
 */
function trainMerges(words, count) {
  const merges = [];
  const pairs = new Map();
  for (const word of words) {
    countPairs(pairs, word, 1);
  }
  while (merges.length < count) {
    let best = '';
    for (const [pair, times] of pairs) {
      const most = pairs.get(best) ?? 0;
      if (times > most || (times === most && pair < best)) {
        best = pair;
      }
    }
    const [left, right] = best.split(' ');
    merges.push([left, right]);
    for (const word of words) {
      if (word.symbols.some((symbol, i) => symbol === right && word.symbols[i - 1] === left)) {
        countPairs(pairs, word, -1);
        merge(word.symbols, left, right);
        countPairs(pairs, word, 1);
      }
    }
  }
  return merges;
}

function countPairs(pairs, { symbols, count }, sign) {
  for (let i = 1; i < symbols.length; i++) {
    const pair = `${symbols[i - 1]} ${symbols[i]}`;
    pairs.set(pair, (pairs.get(pair) ?? 0) + sign * count);
  }
}

function merge(symbols, left, right) {
  for (let i = 1; i < symbols.length; i++) {
    if (symbols[i - 1] === left && symbols[i] === right) {
      symbols.splice(i - 1, 2, left + right);
    }
  }
}

/**
 * The characters that GPT-2 uses for bytes. Printable bytes stand for themselves, and the others
 * follow from U+0100 on.
 */
function byteAlphabet() {
  const isPrintable = (byte) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(isPrintable(byte) ? byte : next++),
  );
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  writeFileSync(join(FOLDER, 'tokenizer.json'), trainTokenizer());
}
