// A model's chat template: writes conversations as the text that the model was trained on. The date
// in a template is a fixed one, because the tokens of a data set must not depend on the day.

import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja';
import { UsageError } from '../errors.js';

/** One message of a conversation. Templates may read further fields, such as `tool_calls`. */
export interface ChatMessage {
  readonly role: string;
  readonly content: string;
}

/** A part of a conversation's text. */
export interface ChatPart {
  readonly text: string;
  /** Whether the assistant says it. */
  readonly isAnswer: boolean;
}

export interface ChatTemplateOptions {
  /** The texts of special tokens, by the names that templates use, such as `bos_token`. */
  readonly specials: Readonly<Record<string, string>>;
  /** The texts of the tokens that end a message. */
  readonly ends: readonly string[];
}

/** The day that Llama 3's own template falls back to, a Friday. */
const DAY: Readonly<Record<string, string>> = {
  '%Y': '2024',
  '%y': '24',
  '%m': '07',
  '%d': '26',
  '%b': 'Jul',
  '%B': 'July',
  '%a': 'Fri',
  '%A': 'Friday',
  '%H': '00',
  '%M': '00',
  '%S': '00',
};

export class ChatTemplate {
  readonly #program: ReturnType<typeof parse>;
  readonly #options: ChatTemplateOptions;

  /** @throws {Error} of the library, where the text is not a template */
  constructor(text: string, options: ChatTemplateOptions) {
    this.#program = parse(tokenize(text, { lstrip_blocks: true, trim_blocks: true }));
    this.#options = options;
  }

  /**
   * The conversation as text and, with `asks`, the text that leads to the assistant's next answer.
   * @throws {UsageError} where the template refuses the conversation
   */
  render(
    messages: readonly ChatMessage[],
    { asks = false }: { readonly asks?: boolean } = {},
  ): string {
    const names = {
      ...GLOBALS,
      ...this.#options.specials,
      messages,
      add_generation_prompt: asks,
    };
    const environment = new Environment();
    for (const [name, value] of Object.entries(names)) {
      environment.set(name, value);
    }
    try {
      return String(new Interpreter(environment).run(this.#program).value);
    } catch (cause) {
      throw new UsageError(
        `the model's chat template refuses the conversation (${(cause as Error).message}). Give it roles that it knows in an order that it takes, or another chat_template.jinja.`,
        { cause },
      );
    }
  }

  /**
   * The conversation in parts, in order. An answer begins with what the template writes when it
   * asks for one, and ends with the token that ends the message.
   * @throws {UsageError} where the template refuses the conversation, or writes an answer
   * differently once something follows it: the model would then learn something else than it is
   * shown later
   */
  parts(messages: readonly ChatMessage[]): ChatPart[] {
    const text = this.render(messages);
    const parts: ChatPart[] = [];
    let at = 0;
    for (const [i, { role }] of messages.entries()) {
      if (role !== 'assistant') {
        continue;
      }
      const before = this.render(messages.slice(0, i), { asks: true });
      const behind = this.render(messages.slice(0, i + 1));
      const isStable =
        text.startsWith(before) &&
        text.startsWith(behind) &&
        at <= before.length &&
        before.length <= behind.length;
      if (!isStable) {
        throw new UsageError(
          `the model's chat template writes message ${i + 1} (assistant) in another way once others follow it (Qwen 3 drops earlier thinking, for instance), so what the model would be asked for can't be told apart. Give a conversation with one answer, its last message, or a chat_template.jinja that leaves earlier messages as they were.`,
        );
      }
      const end = this.#withoutTail(behind).length;
      parts.push({ text: text.slice(at, before.length), isAnswer: false });
      parts.push({ text: text.slice(before.length, end), isAnswer: true });
      at = end;
    }
    return [...parts, { text: this.#withoutTail(text).slice(at), isAnswer: false }];
  }

  /**
   * Cuts white space off after the token that ends a message: it is the template's, and not part of
   * what is said.
   */
  #withoutTail(text: string): string {
    const trimmed = text.trimEnd();
    return this.#options.ends.some((end) => trimmed.endsWith(end)) ? trimmed : text;
  }
}

const GLOBALS: Readonly<Record<string, unknown>> = {
  true: true,
  True: true,
  false: false,
  False: false,
  none: null,
  None: null,
  raise_exception: (message: string) => {
    throw new Error(message);
  },
  range: (a: number, b?: number, step = 1) => {
    const [first, end] = b === undefined ? [0, a] : [a, b];
    const length = Math.max(0, Math.ceil((end - first) / step));
    return Array.from({ length }, (_, i) => first + i * step);
  },
  strftime_now: (format: string) => format.replaceAll(/%[a-zA-Z]/g, (part) => DAY[part] ?? part),
};
