// Cuts long texts where a byte-level tokenizer would cut them, too, so that they are encoded a
// piece at a time: the library's own arrays for a whole book are a hundred times its size.

/** The least number of characters of a piece; its end is searched from there. */
const PIECE_CHARS = 2 ** 16;

/**
 * Cuts a text into pieces, each of which ends with a letter before a line break. The patterns of
 * GPT-2, Llama 3 and Qwen end a word there whatever follows, and nothing that begins with the new
 * line depends on the letter. After a line break they may still look ahead.
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
