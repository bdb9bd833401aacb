// SentencePiece's merges out of the scores of its tokens: each pair of tokens that together are a
// token is a merge, and the higher the token's score, the sooner it is made.

import { TOKEN_TYPE, type Vocabulary } from '../tokenizer/vocabulary.js';

/**
 * The most characters of a token. SentencePiece makes none above 16, and a longer one would be cut
 * in as many ways as it has characters, for nothing.
 */
const MAX_CHARACTERS = 512;

interface Merge {
  readonly score: number;
  readonly left: number;
  readonly right: number;
}

/** The merges in their order, as two texts with a space between them. */
export function scoredMerges({ tokens, types }: Vocabulary, scores: readonly number[]): string[] {
  const parts = new Map<string, number>();
  for (const [id, text] of tokens.entries()) {
    if (types[id] === TOKEN_TYPE.normal) {
      parts.set(text, id);
    }
  }
  const merges: Merge[] = [];
  for (const [text, id] of parts) {
    if (text.length <= MAX_CHARACTERS) {
      merges.push(...mergesOf(text, { parts, score: scores[id]! }));
    }
  }
  return merges
    .sort((a, b) => b.score - a.score)
    .map(({ left, right }) => `${tokens[left]} ${tokens[right]}`);
}

/** The pairs that make a token, in the order of their numbers. */
function mergesOf(
  text: string,
  { parts, score }: { readonly parts: ReadonlyMap<string, number>; readonly score: number },
): Merge[] {
  const merges: Merge[] = [];
  for (let at = 1; at < text.length; at++) {
    const left = parts.get(text.slice(0, at));
    const right = parts.get(text.slice(at));
    if (left !== undefined && right !== undefined) {
      merges.push({ score, left, right });
    }
  }
  return merges.sort((a, b) => a.left - b.left || a.right - b.right);
}
