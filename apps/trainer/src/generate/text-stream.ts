// Turns tokens into text that can be printed as it comes: never half a character, and never the
// beginning of what may be a stop text.

/** Text of a stream that is final. */
export interface TextPart {
  readonly text: string;
  /** Whether a stop text was found; what comes before it is in `text`. */
  readonly isStopped: boolean;
}

/**
 * The number of tokens before which others don't change how a text begins: more than any character
 * has bytes.
 */
const NUM_BEFORE = 8;
/** What an unfinished character is decoded as. */
const UNFINISHED = '\ufffd';

export class TextStream {
  readonly #decode: (tokens: Iterable<number>) => string;
  readonly #stop: readonly string[];
  /** The last tokens whose text is known, and those since. */
  #known: number[];
  #fresh: number[] = [];
  /** Text that is decoded, but held back. */
  #held = '';

  /**
   * @param options.prompt the tokens before, because a tokenizer may write a first word differently
   * @param options.stop the texts that end the stream
   */
  constructor(
    decode: (tokens: Iterable<number>) => string,
    options: { readonly prompt: readonly number[]; readonly stop: readonly string[] },
  ) {
    this.#decode = decode;
    this.#known = options.prompt.slice(-NUM_BEFORE);
    this.#stop = options.stop;
  }

  add(token: number): TextPart {
    this.#fresh.push(token);
    const text = this.#textOfFresh();
    if (text === '' || text.endsWith(UNFINISHED)) {
      return { text: '', isStopped: false };
    }
    this.#known = [...this.#known, ...this.#fresh].slice(-NUM_BEFORE);
    this.#fresh = [];
    return this.#release(text, false);
  }

  /** The text that was held back, when no token follows. */
  end(): TextPart {
    const text = this.#fresh.length === 0 ? '' : this.#textOfFresh();
    this.#fresh = [];
    return this.#release(text, true);
  }

  #textOfFresh(): string {
    const before = this.#decode(this.#known);
    return this.#decode([...this.#known, ...this.#fresh]).slice(before.length);
  }

  #release(more: string, isLast: boolean): TextPart {
    const text = this.#held + more;
    const found = this.#stop.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    if (found.length > 0) {
      this.#held = '';
      return { text: text.slice(0, Math.min(...found)), isStopped: true };
    }
    const length = isLast ? 0 : this.#numHeld(text);
    this.#held = text.slice(text.length - length);
    return { text: text.slice(0, text.length - length), isStopped: false };
  }

  /** The number of characters at the text's end that begin a stop text. */
  #numHeld(text: string): number {
    const lengths = this.#stop.map((stop) => {
      let length = Math.min(stop.length - 1, text.length);
      while (!text.endsWith(stop.slice(0, length))) {
        length -= 1;
      }
      return length;
    });
    return Math.max(0, ...lengths);
  }
}
