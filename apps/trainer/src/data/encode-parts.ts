// Tokens of a text that is made of parts, such as prompt and answer: those of the whole text, cut where
// the parts meet.

import type { Tokenizer } from './tokenizer.js';

/**
 * The tokens of each part. Where a token of the whole would reach over the end of a part, the text is
 * encoded in two there: so a model meets a prompt when it is asked, and what it then says begins anew.
 */
export function encodeParts(
  tokenizer: Pick<Tokenizer, 'encode' | 'specialTexts'>,
  parts: readonly string[],
): Uint32Array[] {
  const text = parts.join('');
  const ends = parts.map(
    (
      (sum) => (part) =>
        (sum += part.length)
    )(0),
  );
  const ids: number[][] = parts.map(() => []);
  let part = 0;
  for (const section of sectionsOf(text, tokenizer.specialTexts)) {
    let { start } = section;
    let rest = tokenizer.encode(text.slice(start, section.end));
    for (; part < parts.length - 1 && ends[part]! < section.end; part++) {
      const own = tokenizer.encode(text.slice(start, ends[part]!));
      append(ids[part]!, own);
      rest = own.every((id, i) => rest[i] === id)
        ? rest.subarray(own.length)
        : tokenizer.encode(text.slice(ends[part]!, section.end));
      start = ends[part]!;
    }
    append(ids[part]!, rest);
  }
  return ids.map((one) => Uint32Array.from(one));
}

interface Section {
  readonly start: number;
  readonly end: number;
}

/**
 * A section begins with a special token, or is what stands before the first one. Their tokens do not
 * hang on each other, so that a long conversation is encoded once and not once a turn.
 */
function sectionsOf(text: string, specialTexts: readonly string[]): Section[] {
  const starts = [0];
  if (specialTexts.length > 0) {
    const longestFirst = [...specialTexts].sort((a, b) => b.length - a.length);
    const any = new RegExp(longestFirst.map(escapePattern).join('|'), 'gu');
    starts.push(...[...text.matchAll(any)].map(({ index }) => index).filter((at) => at > 0));
  }
  return starts.map((start, i) => ({ start, end: starts[i + 1] ?? text.length }));
}

function escapePattern(text: string): string {
  return text.replaceAll(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

/** Not by spreading: a document may have more tokens than a call may have arguments. */
function append(to: number[], ids: Uint32Array): void {
  for (const id of ids) {
    to.push(id);
  }
}
