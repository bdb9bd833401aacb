// Cuts long texts where their tokenizer would cut them, too, so that they are encoded a piece at a
// time: the library's own arrays for a whole book are a hundred times its size.

/**
 * Where a text may be cut: behind any match of a pattern. The patterns later in the list are for
 * texts in which those before find nothing.
 */
export type CutPlaces = readonly RegExp[];

/** The least number of characters of a piece; its end is searched from there. */
export const PIECE_CHARS = 2 ** 14;
/**
 * The most characters of a piece. A text without a place to cut is one word, and the time for a
 * word grows with its square: 32,768 letters take GPT-2's encoder 2 s.
 */
const MOST_CHARS = 2 * PIECE_CHARS;
/** The most where nothing is known of places: 16 M characters take the library 2 GB. */
const MOST_UNCUT_CHARS = 2 ** 24;

// Note [places to cut]
// The words of GPT-2, Llama 3, Qwen, DeepSeek and GPT-4o are matches of a pattern, one behind the
// other, and none of them has
//   - white space behind another character, except line breaks behind a sign (Llama 3: `;\n`);
//   - a sign behind a letter or a number, except an apostrophe (GPT-4o: `don't`).
// So one word ends there and another begins, whatever follows, and no word looks back. What a
// pattern looks ahead for, `\s+(?!\S)`, concerns the end of white space alone. NFC composes a
// letter with marks behind it, and never with white space or a sign. `splitsAtPlaces` asks a
// tokenizer whether it is of this kind.
//
// A token that is found in a text before its words, such as `<|endoftext|>`, must not be cut:
// those with white space are refused beside their tokenizer, and a sign that follows a letter in
// one of them is no place.

/** The places in texts of a tokenizer whose words are of the usual kind. */
export function usualPlaces(specialTexts: readonly string[]): CutPlaces {
  const inside = specialTexts.flatMap((text) =>
    [...text.matchAll(/(?<=[\p{L}\p{N}])[\p{P}\p{S}]/gu)].map(([sign]) => sign),
  );
  const no = [...new Set(["'", '\u2019', '_', ...inside])];
  const excluded = no.map((sign) => `\\u{${sign.codePointAt(0)!.toString(16)}}`).join('');
  return [
    /[\p{L}\p{N}\p{P}\p{S}](?=[ \t])|[\p{L}\p{N}](?=[\r\n])/gu,
    new RegExp(`[\\p{L}\\p{N}](?=[\\p{P}\\p{S}])(?![${excluded}])`, 'gu'),
  ];
}

const BEFORE = [...'aZ\u00e9\u6f22\u02b07\u00bd\u2167'];
const SIGNS_BEFORE = [...').=\u3002\u{1f600}'];
const SPACES = [' ', '  ', '\t', ' \n', '\n', '\n\n', '\r\n', '\n '];
const SIGNS = [...'.,-+=/)\u3002\u20ac\u{1f600}'];
const AFTER = ['', 'a', '1', '.', "'s"];

/**
 * Whether words end at the usual places, by texts that have one each.
 * @param wordsOf the words of a text, as the tokenizer takes them apart
 */
export function splitsAtPlaces(wordsOf: (text: string) => readonly string[]): boolean {
  const seen = new Map<string, string>();
  const words = (text: string) => {
    const known = seen.get(text) ?? JSON.stringify(wordsOf(text)).slice(1, -1);
    seen.set(text, known);
    return known;
  };
  const pairs = [
    ...BEFORE.flatMap((before) => [...SPACES, ...SIGNS].map((next) => [before, next] as const)),
    ...SIGNS_BEFORE.flatMap((before) => [' ', '  ', '\t'].map((next) => [before, next] as const)),
  ];
  return pairs.every(([before, next], i) => {
    const [start, rest] = [`x ${before}`, `${next}${AFTER[i % AFTER.length]}`];
    return words(start + rest) === `${words(start)},${words(rest)}`;
  });
}

/** A text, or one of its words, that is too long to be encoded at once. */
export class UncutTextError extends Error {
  /** The number of characters before it. */
  readonly offset: number;
  readonly most: number;
  constructor(offset: number, most: number) {
    super(`no place to cut a text in ${most} characters behind ${offset}`);
    this.offset = offset;
    this.most = most;
  }
}

/** Cuts a text that comes in parts. */
export class TextCutter {
  readonly #places: CutPlaces | undefined;
  #rest = '';
  #offset = 0;

  constructor(places: CutPlaces | undefined) {
    this.#places = places;
  }

  /**
   * The pieces that are known to end with this part.
   * @throws {UncutTextError} where there is no place in too long a text
   */
  *push(part: string): Generator<string> {
    this.#rest += part;
    const most = this.#places === undefined ? MOST_UNCUT_CHARS : MOST_CHARS;
    for (;;) {
      const end = findPlace(this.#rest.slice(0, most + 1), this.#places, this.#rest.length > most);
      if (end !== undefined) {
        yield this.#rest.slice(0, end);
        this.#offset += end;
        this.#rest = this.#rest.slice(end);
      } else if (this.#rest.length > most) {
        throw new UncutTextError(this.#offset, most);
      } else {
        return;
      }
    }
  }

  /** The last piece; empty where nothing is left. */
  end(): string {
    return this.#rest;
  }
}

/** The pieces of a text that is there whole; one that has no place to cut stays whole. */
export function* cutText(text: string, places: CutPlaces | undefined): Generator<string> {
  let rest = text;
  for (;;) {
    // Searching all of a text for a place that it does not have, once a piece, would take hours.
    const end = findPlace(rest.slice(0, MOST_CHARS + 1), places) ?? findPlace(rest, places);
    if (end === undefined) {
      yield rest;
      return;
    }
    yield rest.slice(0, end);
    rest = rest.slice(end);
  }
}

/** The end of the first piece; undefined where there is no place. */
function findPlace(text: string, places: CutPlaces = [], isWhole = true): number | undefined {
  if (text.length <= PIECE_CHARS) {
    return undefined;
  }
  // A later part of the text may have a place of a better kind.
  for (const place of isWhole ? places : places.slice(0, 1)) {
    place.lastIndex = PIECE_CHARS;
    if (place.exec(text) !== null) {
      return place.lastIndex;
    }
  }
  return undefined;
}
