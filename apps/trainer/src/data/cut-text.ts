// Cuts long texts where a byte-level tokenizer would cut them, too, so that they are encoded a
// piece at a time: a library's own arrays for a whole book are a hundred times its size.

/** Characters of a piece at least; its end is looked for from there. */
const PIECE_CHARS = 2 ** 16;

/**
 * Pieces end behind a letter that a line break follows. The patterns of GPT-2, Llama 3 and Qwen end
 * a word there whatever comes, and a new line begins nothing that hangs on the letter; behind a
 * line break they may still look ahead.
 */
export function* cutText(text: string): Generator<string> {
  const end = /\p{L}(?=\n)/gu;
  for (let at = 0; at < text.length; ) {
    end.lastIndex = at + PIECE_CHARS;
    const found = end.exec(text) === null ? text.length : end.lastIndex;
    yield text.slice(at, found);
    at = found;
  }
}
