// Long texts of a table's column, cut where they are equal, so that they still differ.

/** The characters of a cell. */
const ROOM = 30;
/** What a path or a list is cut behind, so that whole words stay. */
const BOUNDARY = /[/\\,:;\s]/;

/**
 * A short form of each text, which no other text has. A common beginning goes, then the middle:
 * of data/en/part-1.jsonl and data/en/part-2.jsonl the parts are left.
 */
export function shortTexts(texts: readonly string[], room = ROOM): ReadonlyMap<string, string> {
  const all = [...new Set(texts)];
  const long = all.filter(({ length }) => length > room);
  const common = long.length > 1 ? commonLength(long) : 0;
  const rest = (text: string) => (text.length > room ? text.slice(common) : text);
  const isCut = (text: string) => text.length > room && common > 0;
  const longest = Math.max(...all.map(({ length }) => length));
  for (let most = room; most < longest + room; most += room / 2) {
    const short = all.map((text) => `${isCut(text) ? '\u2026' : ''}${middleCut(rest(text), most)}`);
    if (new Set(short).size === all.length) {
      return new Map(all.map((text, i) => [text, short[i]!]));
    }
  }
  // A text that itself begins with an ellipsis may be what another one is cut to.
  return new Map(all.map((text) => [text, text]));
}

/** How many characters all texts begin with, up to a boundary. */
function commonLength(texts: readonly string[]): number {
  const [first = '', ...others] = texts;
  let length = 0;
  while (length < first.length && others.every((text) => text[length] === first[length])) {
    length++;
  }
  while (length > 0 && !BOUNDARY.test(first[length - 1]!)) {
    length--;
  }
  return length;
}

/** The end of a text tells more than its beginning. */
function middleCut(text: string, most: number): string {
  const head = Math.floor(most / 3);
  return text.length <= most
    ? text
    : `${text.slice(0, head)}\u2026${text.slice(text.length - (most - head - 1))}`;
}
