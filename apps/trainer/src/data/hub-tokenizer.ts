// The tokenizer of a model directory in the Hugging Face layout: tokenizer.json, and the files
// beside it that tell which tokens begin and end a text and how conversations are written.

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { Tokenizer as HubTokenizer } from '@huggingface/tokenizers';
import { UsageError } from '../errors.js';
import type { FilePieces } from '../files/write-file.js';
import { describeSystemError } from '../system-error.js';
import { ChatTemplate } from './chat-template.js';
import { type CutPlaces, cutText, PIECE_CHARS, splitsAtPlaces, usualPlaces } from './cut-text.js';
import { rustCuts } from './rust-cuts.js';
import { TOKENIZER_FILE, type Tokenizer } from './tokenizer.js';

const TEMPLATE_FILE = 'chat_template.jinja';
/** The files that a trained model is given, too. */
const FILES = [
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

interface AddedToken {
  readonly id: number;
  readonly content: string;
  readonly special?: boolean;
  readonly normalized?: boolean;
  readonly lstrip?: boolean;
  readonly rstrip?: boolean;
}

interface TokenizerJson {
  readonly added_tokens?: readonly AddedToken[];
  readonly normalizer?: { readonly type: string } | null;
  readonly pre_tokenizer?: unknown;
}

/** A token as configs write it. */
type TokenText = string | { readonly content: string } | null;

interface TokenizerConfig {
  readonly bos_token?: TokenText;
  /** Whether a token is put at the beginning; it overrides what tokenizer.json says. */
  readonly add_bos_token?: boolean | null;
  readonly eos_token?: TokenText;
  readonly pad_token?: TokenText;
  readonly unk_token?: TokenText;
  /** Whether white space is trimmed, as XLM does. */
  readonly remove_space?: boolean;
  readonly chat_template?:
    | string
    | readonly { readonly name: string; readonly template: string }[]
    | null;
}

/** The ids that generation_config.json and config.json name. */
interface TokenIds {
  readonly bos_token_id?: number | null;
  readonly eos_token_id?: number | readonly number[] | null;
}

interface HubFiles {
  readonly json: string;
  readonly config: TokenizerConfig;
  /** The ids of both files; the file that counts more comes first. */
  readonly ids: readonly TokenIds[];
  readonly template: string | undefined;
}

/** @throws {UsageError} where a file is missing or is not what it should be */
export async function openHubTokenizer(directory: string): Promise<Tokenizer> {
  const files = await readHubFiles(directory);
  const path = join(directory, TOKENIZER_FILE);
  try {
    const json = JSON.parse(files.json) as TokenizerJson;
    const cutting = { ...json, pre_tokenizer: rustCuts(json.pre_tokenizer) };
    return makeTokenizer(json, files, new HubTokenizer(cutting, files.config));
  } catch (cause) {
    throw unusable(path, (cause as Error).message, cause);
  }
}

/** The files of the tokenizer in a model directory, of which a trained model gets copies. */
export async function tokenizerFiles(directory: string): Promise<readonly FilePieces[]> {
  const files = await Promise.all(
    FILES.map(async (name) => {
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
  const files = await readHubFiles(directory);
  return createHash('sha256').update(JSON.stringify(files)).digest('hex');
}

async function readHubFiles(directory: string): Promise<HubFiles> {
  const text = async (name: string) => {
    const path = join(directory, name);
    try {
      return await readFile(path, 'utf8');
    } catch (cause) {
      if ((cause as NodeJS.ErrnoException).code === 'ENOENT' && name !== TOKENIZER_FILE) {
        return undefined;
      }
      throw unusable(path, describeSystemError(cause), cause);
    }
  };
  const json = async (name: string): Promise<object> => {
    try {
      return JSON.parse((await text(name)) ?? '{}') as object;
    } catch (cause) {
      throw cause instanceof UsageError
        ? cause
        : unusable(join(directory, name), (cause as Error).message, cause);
    }
  };
  const config = (await json('tokenizer_config.json')) as TokenizerConfig;
  const ids = [await json('generation_config.json'), await json('config.json')].map(
    ({ bos_token_id, eos_token_id }: TokenIds) => ({ bos_token_id, eos_token_id }),
  ) as TokenIds[];
  const own = config.chat_template ?? undefined;
  const template =
    (await text(TEMPLATE_FILE)) ??
    (typeof own === 'string' || own === undefined
      ? own
      : own.find(({ name }) => name === 'default')?.template);
  return { json: (await text(TOKENIZER_FILE))!, config, ids, template };
}

function unusable(path: string, why: string, cause: unknown): UsageError {
  return new UsageError(
    `--tokenizer model: ${path} can't be used (${why}). Give a model directory with the tokenizer.json that it came with, or choose --tokenizer byte or gpt2.`,
    { cause },
  );
}

function makeTokenizer(
  { added_tokens: added = [], normalizer = null }: TokenizerJson,
  files: HubFiles,
  hub: HubTokenizer,
): Tokenizer {
  const { config } = files;
  const textOf = (token: TokenText | undefined) =>
    typeof token === 'string' ? token : token?.content;
  const idOf = (token: TokenText | undefined) => {
    const text = textOf(token);
    return text === undefined ? undefined : hub.token_to_id(text);
  };
  const endTokens = [
    idOf(config.eos_token) ?? [],
    ...files.ids.map(({ eos_token_id }) => eos_token_id ?? []),
  ].flat();
  const beginToken =
    idOf(config.bos_token) ??
    files.ids.map(({ bos_token_id }) => bos_token_id ?? undefined).find((id) => id !== undefined);
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
    places ??= { found: placesOf({ added_tokens: added, normalizer }, files, hub) };
    return places.found;
  };
  const encodePiece = (text: string) => {
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
      files.template === undefined
        ? undefined
        : new ChatTemplate(files.template, { specials, ends }),
    vocabularySize: Math.max(hub.model!.vocab.length, ...added.map(({ id }) => id + 1)),
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
 * Where the texts of a tokenizer may be cut. One that looks for tokens with white space around
 * them, or puts a space before the first word, would do so in each piece.
 */
function placesOf(
  { added_tokens: added, normalizer }: Required<Pick<TokenizerJson, 'added_tokens' | 'normalizer'>>,
  { config }: HubFiles,
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
