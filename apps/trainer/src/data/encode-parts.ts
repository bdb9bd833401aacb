// The tokens of a text that consists of parts, such as prompt and answer: those of the whole text,
// cut where the parts meet.

import type { Tokenizer } from './tokenizer.js';

/**
 * The tokens of each part. Where a token of the whole text would reach over the end of a part, the
 * text is encoded in two at that place: so a model sees a prompt as it does when it is asked, and
 * its answer begins with a new token. A tokenizer that would make another text of the two, such as
 * Llama 2's, which begins each with a space, keeps the tokens of the whole: the one that reaches
 * over belongs to the later part.
 */
export function encodeParts(
  tokenizer: Pick<Tokenizer, 'encode' | 'decode' | 'specialTexts'>,
  parts: readonly string[],
): Uint32Array[] {
  const text = parts.join('');
  let length = 0;
  const ends = parts.map((part) => {
    length += part.length;
    return length;
  });
  const ids: number[][] = parts.map(() => []);
  let part = 0;
  for (const { start, end } of sectionsOf(text, tokenizer.specialTexts)) {
    // The text that is encoded at once, the number of its tokens that are given out, and the place
    // they reach; undefined where they end before the part.
    let run = { start, tokens: tokenizer.encode(text.slice(start, end)) };
    let taken = 0;
    let at: number | undefined = start;
    for (; part < parts.length - 1 && ends[part]! < end; part++) {
      const border = ends[part]!;
      const before = tokenizer.encode(text.slice(run.start, border));
      const shared = numShared(before, run.tokens);
      const isCut = shared < before.length;
      const own = isCut && at !== undefined ? tokenizer.encode(text.slice(at, border)) : undefined;
      const rest = own && tokenizer.encode(text.slice(border, end));
      const given = run.tokens.subarray(0, taken);
      if (rest && isSameText(tokenizer, run.tokens, [...given, ...own, ...rest])) {
        append(ids[part]!, own);
        run = { start: border, tokens: rest };
        taken = 0;
        at = border;
        continue;
      }
      const reached = Math.max(taken, shared);
      append(ids[part]!, run.tokens.subarray(taken, reached));
      taken = reached;
      at = isCut ? undefined : border;
    }
    append(ids[part]!, run.tokens.subarray(taken));
  }
  return ids.map((part) => Uint32Array.from(part));
}

/** The number of tokens that two lists have in common, from the first one on. */
function numShared(a: Uint32Array, b: Uint32Array): number {
  const differing = a.findIndex((id, i) => id !== b[i]);
  return differing < 0 ? a.length : differing;
}

function isSameText(
  { decode }: Pick<Tokenizer, 'decode'>,
  a: Iterable<number>,
  b: Iterable<number>,
): boolean {
  return decode(a) === decode(b);
}

interface Section {
  readonly start: number;
  readonly end: number;
}

/**
 * The sections of a text, each of which begins with a special token, except the first. The tokens
 * of a section do not depend on the others, so a long conversation is encoded once, and not once
 * per message.
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

/**
 * Appends without spreading, because a document may have more tokens than a call may have
 * arguments.
 */
function append(to: number[], ids: Uint32Array): void {
  for (const id of ids) {
    to.push(id);
  }
}
