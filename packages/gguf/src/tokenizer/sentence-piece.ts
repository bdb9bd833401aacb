// SentencePiece's merges, as the tokenizer.json of Llama 2 and of Gemma has them: a sign stands for
// each space, and characters that the vocabulary lacks are written as their bytes. llama.cpp has no
// list of merges for it, but joins the two parts that make the token of the highest score. The
// result is the same where every way to make a token is a merge, and where the merges of one token
// stand together in the list. Tokens that people defined, such as Gemma's runs of spaces, are found
// before any merge.

import { GgufTokenizerError } from '../errors.js';
import type { MetadataValue } from '../gguf-file.js';
import type { TokenizerJson } from '../tokenizer-files.js';
import { stepsOf } from './steps.js';
import { TOKEN_TYPE, type Vocabulary } from './vocabulary.js';

/** The sign that stands for a space. */
export const SPACE = '\u2581';
const BYTES = Array.from(
  { length: 256 },
  (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`,
);

export function isSentencePiece({ model }: TokenizerJson): boolean {
  return model.type === 'BPE' && model.byte_fallback === true;
}

/**
 * The keys of a vocabulary with scores.
 * @throws {GgufTokenizerError} for a vocabulary with which llama.cpp would cut a text in another
 * way
 */
export function sentencePieceMetadata(
  json: TokenizerJson,
  { tokens, types }: Vocabulary,
): readonly (readonly [string, MetadataValue])[] {
  const { unk_token: unknown } = json.model;
  if (json.model.ignore_merges === true) {
    throw new GgufTokenizerError(
      'tokenizer.json: expected ignore_merges to be false beside byte_fallback, got true.',
    );
  }
  const bytes = new Set(BYTES);
  const found = types.map((type, id) => {
    const text = tokens[id]!;
    return text === unknown ? TOKEN_TYPE.unknown : bytes.delete(text) ? TOKEN_TYPE.byte : type;
  });
  if (bytes.size > 0 || unknown == null) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected an unk_token and a token for each byte beside byte_fallback, got none for ${[...bytes][0] ?? 'unk_token'}.`,
    );
  }
  return [
    ['tokenizer.ggml.model', { type: 'string', value: 'llama' }],
    ['tokenizer.ggml.pre', { type: 'string', value: 'default' }],
    ['tokenizer.ggml.tokens', { type: 'string[]', value: textsOf({ tokens, types }) }],
    ['tokenizer.ggml.scores', { type: 'f32[]', value: scoresOf(json, { tokens, types: found }) }],
    ['tokenizer.ggml.token_type', { type: 'i32[]', value: found }],
    ['tokenizer.ggml.unknown_token_id', { type: 'u32', value: tokens.indexOf(unknown) }],
    ['tokenizer.ggml.add_space_prefix', { type: 'bool', value: addsSpace(json) }],
  ];
}

/**
 * The tokens as llama.cpp looks for them: those that people defined in the text as it is, where
 * spaces are spaces.
 */
function textsOf({ tokens, types }: Vocabulary): string[] {
  return tokens.map((text, id) =>
    types[id] === TOKEN_TYPE.userDefined ? text.replaceAll(SPACE, ' ') : text,
  );
}

/**
 * Whether a space is put before each part of a text that follows its beginning or a special token.
 */
function addsSpace({ normalizer, pre_tokenizer: preTokenizer }: TokenizerJson): boolean {
  const steps = [...stepsOf(normalizer), ...stepsOf(preTokenizer)];
  const signatures = steps.map(({ type, ...fields }) => {
    const pattern = (fields.pattern as { readonly String?: string } | undefined)?.String;
    return [type, pattern, fields.content, fields.prepend, fields.prepend_scheme, fields.split];
  });
  const known = SPACES.find(([, steps]) => JSON.stringify(steps) === JSON.stringify(signatures));
  if (known === undefined) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected spaces to be written as ${SPACE}, before every part of a text or none, got ${JSON.stringify(steps)}. llama.cpp would do it elsewhere.`,
    );
  }
  return known[0];
}

const REPLACE = ['Replace', ' ', SPACE, undefined, undefined, undefined];
/** Gemma's, which finds no space, since the normalizer has replaced them all. */
const SPLIT = ['Split', ' ', undefined, undefined, undefined, undefined];
const metaspace = (scheme: string) => [
  ...['Metaspace', undefined, undefined, undefined],
  ...[scheme, false],
];
/** Whether a space is added, by the steps of files that do it and of files that don't. */
const SPACES: readonly (readonly [boolean, readonly unknown[]])[] = [
  [true, [['Prepend', undefined, undefined, SPACE, undefined, undefined], REPLACE]],
  [false, [REPLACE]],
  [false, [REPLACE, SPLIT]],
  [true, [metaspace('always')]],
  [false, [metaspace('never')]],
];

/**
 * The score of each token: the sooner a token is merged, the higher. Tokens that no merge makes
 * have 0, which nothing reads.
 */
function scoresOf(json: TokenizerJson, { tokens, types }: Vocabulary): number[] {
  const { merges = [] } = json.model;
  const idOf = new Map(tokens.map((text, id) => [text, id]));
  const scores = new Array<number>(tokens.length).fill(0);
  const pairs = new Set<string>();
  let last = '';
  merges.forEach((merge, rank) => {
    const pair = typeof merge === 'string' ? merge : merge.join(' ');
    const token = pair.replace(' ', '');
    const id = idOf.get(token);
    pairs.add(pair);
    if (id !== undefined && types[id] === TOKEN_TYPE.userDefined) {
      return;
    }
    if (id === undefined || (token !== last && scores[id] !== 0)) {
      throw new GgufTokenizerError(
        `tokenizer.json: expected the merges of ${JSON.stringify(token)} together and in the vocabulary, got ${JSON.stringify(pair)} apart. llama.cpp would merge in another order.`,
      );
    }
    if (token !== last) {
      scores[id] = -1 - rank;
      last = token;
    }
  });
  const isPart = (text: string) => types[idOf.get(text) ?? -1] === TOKEN_TYPE.normal;
  tokens.forEach((text, id) => {
    const missing = types[id] === TOKEN_TYPE.normal ? missingMerge(text, { pairs, isPart }) : '';
    if (missing !== '') {
      throw new GgufTokenizerError(
        `tokenizer.json: expected every pair that makes a token to be a merge, got none of ${JSON.stringify(missing)}. llama.cpp would merge it.`,
      );
    }
  });
  return scores;
}

/** Finds two tokens that together are `text` and are not a merge; '' where every pair is one. */
function missingMerge(
  text: string,
  known: { readonly pairs: ReadonlySet<string>; readonly isPart: (text: string) => boolean },
): string {
  const characters = [...text];
  for (let at = 1; at < characters.length; at++) {
    const left = characters.slice(0, at).join('');
    const right = characters.slice(at).join('');
    const pair = `${left} ${right}`;
    if (!known.pairs.has(pair) && known.isPart(left) && known.isPart(right)) {
      return pair;
    }
  }
  return '';
}
