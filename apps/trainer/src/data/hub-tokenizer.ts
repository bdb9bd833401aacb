// The tokenizer of a model directory in the Hugging Face layout: tokenizer.json, and the files
// beside it that tell which tokens begin and end a text and how conversations are written.

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { Tokenizer as HubTokenizer } from '@huggingface/tokenizers';
import { GgufError } from '@shardweave/gguf';
import {
  readTokenizerJson,
  readTokenizerSettings,
  type TokenizerConfig,
  type TokenizerJson,
  type TokenizerSettings,
  type TokenText,
  textOf,
} from '@shardweave/gguf/tokenizer-files';
import { UsageError } from '../errors.js';
import { ggufTexts, ggufTokenizer, isGgufFile } from '../files/gguf-model.js';
import { type FilePieces, textFile } from '../files/write-file.js';
import { describeSystemError } from '../system-error.js';
import { ChatTemplate } from './chat-template.js';
import { type CutPlaces, cutText, PIECE_CHARS, splitsAtPlaces, usualPlaces } from './cut-text.js';
import { rustCuts } from './rust-cuts.js';
import { type TextFrame, TOKENIZER_FILE, type Tokenizer } from './tokenizer.js';

const TEMPLATE_FILE = 'chat_template.jinja';
/** The files that a trained model is given, too. */
export const TOKENIZER_FILES = [
  TOKENIZER_FILE,
  'tokenizer_config.json',
  'generation_config.json',
  'special_tokens_map.json',
  TEMPLATE_FILE,
];

/** Words are asked for as those of a text's beginning. */
const SECTION = { section_index: 0 };

/** Half a surrogate pair, which no encoding of characters has. */
const LONE_SURROGATE = /\p{Surrogate}/gu;

/** Chinese characters beyond the first plane, as the Rust library knows them. */
const FAR_CHINESE =
  /[\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;

/** The other files that say how a text becomes tokens. */
const SETTINGS = ['tokenizer_config.json', 'generation_config.json', 'config.json', TEMPLATE_FILE];

/** @throws {UsageError} where a file is missing or is not what it should be */
export async function openHubTokenizer(directory: string): Promise<Tokenizer> {
  const texts = await readTexts(directory);
  const settings = settingsIn(texts, directory);
  try {
    const json = readTokenizerJson(texts);
    const cutting = { ...json, pre_tokenizer: rustCuts(json.pre_tokenizer) };
    return makeTokenizer(json, settings, new HubTokenizer(cutting, settings.config));
  } catch (cause) {
    throw unusable(join(directory, TOKENIZER_FILE), (cause as Error).message, cause);
  }
}

/** The files of a model's tokenizer, of which a trained model gets copies. */
export async function tokenizerFiles(directory: string): Promise<readonly FilePieces[]> {
  if (isGgufFile(directory)) {
    return [...(await ggufTokenizer(directory))].map(([name, text]) => textFile(name, text));
  }
  const files = await Promise.all(
    TOKENIZER_FILES.map(async (name) => {
      const path = join(directory, name);
      const found = await stat(path).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'ENOENT') {
          throw error;
        }
      });
      const pieces = (): AsyncIterable<Uint8Array> => createReadStream(path);
      return found === undefined ? [] : [{ name, byteLength: found.size, pieces }];
    }),
  );
  return files.flat();
}

/** A hash of everything on which the tokens of a text or a conversation depend. */
export async function hubTokenizerHash(directory: string): Promise<string> {
  const texts = await readTexts(directory);
  const { config, ids, chatTemplate: template } = settingsIn(texts, directory);
  const named = ids.map(({ bos_token_id, eos_token_id }) => ({ bos_token_id, eos_token_id }));
  const files = { json: texts.get(TOKENIZER_FILE), config, ids: named, template };
  return createHash('sha256').update(JSON.stringify(files)).digest('hex');
}

/** The texts of tokenizer.json and of those of the other files that are there. */
async function readTexts(directory: string): Promise<ReadonlyMap<string, string>> {
  if (isGgufFile(directory)) {
    return await ggufTexts(directory).catch((cause: Error) => {
      throw cause instanceof GgufError ? unusable(directory, cause.message, cause) : cause;
    });
  }
  const texts = new Map<string, string>();
  for (const name of [TOKENIZER_FILE, ...SETTINGS]) {
    const path = join(directory, name);
    try {
      texts.set(name, await readFile(path, 'utf8'));
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code !== 'ENOENT' || name === TOKENIZER_FILE) {
        throw unusable(path, describeSystemError(cause), cause);
      }
    }
  }
  return texts;
}

function settingsIn(texts: ReadonlyMap<string, string>, directory: string): TokenizerSettings {
  try {
    return readTokenizerSettings(texts);
  } catch (cause) {
    throw unusable(directory, (cause as Error).message, cause);
  }
}

function unusable(path: string, why: string, cause: unknown): UsageError {
  return new UsageError(
    `--tokenizer model: ${path} can't be used (${why.replace(/\.$/, '')}). Give a model directory with the tokenizer.json that it came with, or choose --tokenizer byte or gpt2.`,
    { cause },
  );
}

function makeTokenizer(
  { added_tokens: added = [], normalizer = null }: TokenizerJson,
  { config, ids: namedIds, chatTemplate }: TokenizerSettings,
  hub: HubTokenizer,
): Tokenizer {
  const idOf = (token: TokenText | undefined) => {
    const text = textOf(token);
    return text === undefined ? undefined : hub.token_to_id(text);
  };
  const endTokens = [
    idOf(config.eos_token) ?? [],
    ...namedIds.map(({ eos_token_id }) => eos_token_id ?? []),
  ].flat();
  const beginToken =
    idOf(config.bos_token) ??
    namedIds.map(({ bos_token_id }) => bos_token_id ?? undefined).find((id) => id !== undefined);
  const [endToken] = endTokens;
  const ends = endTokens.flatMap((id) => hub.id_to_token(id) ?? []);
  const specials = Object.fromEntries(
    Object.entries({
      bos_token: textOf(config.bos_token) ?? (beginToken && hub.id_to_token(beginToken)),
      eos_token: textOf(config.eos_token) ?? ends[0],
      pad_token: textOf(config.pad_token),
      unk_token: textOf(config.unk_token),
    }).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  );
  // Few texts are long enough to be cut, and asking for the places takes some 30 ms.
  let places: { readonly found: CutPlaces | undefined } | undefined;
  const cuts = () => {
    places ??= { found: placesOf({ added_tokens: added, normalizer }, config, hub) };
    return places.found;
  };
  const isBert = handlesChinese(normalizer);
  const encodePiece = (given: string) => {
    const text = isBert ? given.replaceAll(FAR_CHINESE, ' $& ') : given;
    const { ids, tokens } = hub.encode(text, { add_special_tokens: false });
    const unknown = ids.findIndex((id) => !Number.isInteger(id));
    if (unknown >= 0) {
      throw new UsageError(
        `the model's tokenizer has no token for ${JSON.stringify(tokens[unknown])}, and none for what it doesn't know. Leave it out of the text.`,
      );
    }
    return ids;
  };
  return {
    name: 'model',
    beginToken,
    addsBegin:
      beginToken !== undefined && (config.add_bos_token ?? hub.encode('').ids[0] === beginToken),
    endToken,
    endTokens,
    // A token that takes along the white space before it belongs to what stands there.
    specialTexts: added
      .filter(({ special, normalized = special !== true, lstrip }) => !normalized && !lstrip)
      .map(({ content }) => content),
    chat:
      chatTemplate === undefined ? undefined : new ChatTemplate(chatTemplate, { specials, ends }),
    vocabularySize: Math.max(hub.model!.vocab.length, ...added.map(({ id }) => id + 1)),
    get frame() {
      return frameOf(hub);
    },
    get cuts() {
      return cuts();
    },
    encode: (text) => {
      const ids: number[] = [];
      const whole = text.replaceAll(LONE_SURROGATE, '\ufffd');
      for (const piece of text.length > PIECE_CHARS ? cutText(whole, cuts()) : [whole]) {
        for (const id of encodePiece(piece)) {
          ids.push(id);
        }
      }
      return Uint32Array.from(ids);
    },
    decode: (tokens) => {
      // The vocabularies of models are padded, and numbers after the tokenizer's last one have no
      // text.
      const known = [...tokens].filter((id) => hub.id_to_token(id) !== undefined);
      return known.length === 0 ? '' : hub.decode(known, { clean_up_tokenization_spaces: false });
    },
  };
}

/**
 * Whether a normalizer puts spaces around Chinese characters. The library does so for those of the
 * first plane alone.
 */
function handlesChinese(normalizer: TokenizerJson['normalizer']): boolean {
  const {
    type,
    handle_chinese_chars: isHandled,
    normalizers = [],
  } = (normalizer ?? {}) as {
    readonly type?: string;
    readonly handle_chinese_chars?: boolean;
    readonly normalizers?: readonly NonNullable<TokenizerJson['normalizer']>[];
  };
  return (type === 'BertNormalizer' && isHandled === true) || normalizers.some(handlesChinese);
}

/** The special tokens of a tokenizer, told by what it makes of a text that has one token or two. */
function frameOf(hub: HubTokenizer): TextFrame {
  const text = 'a';
  const bare = hub.encode(text, { add_special_tokens: false }).ids;
  const single = hub.encode(text).ids;
  const pair = hub.encode(text, { text_pair: text }).ids;
  const first = single.findIndex((_, at) => bare.every((id, i) => single[at + i] === id));
  const begin = single.slice(0, first);
  const end = single.slice(first + bare.length);
  const between = pair.slice(first + bare.length, pair.length - bare.length - end.length);
  return { begin, between, end };
}

/**
 * Where the texts of a tokenizer may be cut. One that looks for tokens with white space around
 * them, or puts a space before the first word, would do so in each piece.
 */
function placesOf(
  { added_tokens: added, normalizer }: Required<Pick<TokenizerJson, 'added_tokens' | 'normalizer'>>,
  config: TokenizerConfig,
  hub: HubTokenizer,
): CutPlaces | undefined {
  const isPlain =
    config.remove_space !== true &&
    (normalizer === null || normalizer.type === 'NFC') &&
    !added.some(({ content, lstrip, rstrip }) => lstrip || rstrip || /\s/.test(content));
  const { pre_tokenizer: words } = hub;
  const isUsual =
    isPlain && words !== null && splitsAtPlaces((text) => words.pre_tokenize(text, SECTION));
  return isUsual ? usualPlaces(added.map(({ content }) => content)) : undefined;
}
