// A model's chat template: writes conversations as the text that the model was trained on. The date
// in a template is a fixed one, because the tokens of a data set must not depend on the day.

import { Environment, Interpreter, parse, tokenize } from '@huggingface/jinja';
import { UsageError } from '../errors.js';
import type { ChatMessage, Conversation } from './conversation.js';
import { inWordsOf } from './tool-words.js';

export type { ChatMessage, Conversation } from './conversation.js';

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
  /** The text of the template. */
  readonly text: string;

  /** @throws {Error} of the library, where the text is not a template */
  constructor(text: string, options: ChatTemplateOptions) {
    // The library reads over {% generation %}, and answers are found by rendering.
    this.#program = parse(tokenize(text, { lstrip_blocks: true, trim_blocks: true }));
    this.#options = options;
    this.text = text;
  }

  /**
   * The conversation as text and, with `asks`, the text that leads to the assistant's next answer.
   * @param options.values further variables of the template
   * @throws {UsageError} where the template refuses the conversation
   */
  render(
    messages: readonly ChatMessage[],
    {
      asks = false,
      values = {},
    }: { readonly asks?: boolean; readonly values?: Conversation['values'] } = {},
  ): string {
    const names = {
      ...this.#options.specials,
      ...values,
      ...GLOBALS,
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
   * The documents that teach the answers of a conversation, each in parts. An answer begins with
   * what the template writes when it asks for one, and ends with the token that ends the message.
   * Answers share a document as far as the template leaves them as they were once others follow;
   * one that it changes later (Qwen 3 drops earlier thinking) gets the text that the model sees
   * when it answers.
   * @throws {UsageError} where the template refuses the conversation, leaves out something that it
   * says, or does not begin an answer as it asks for it
   */
  documents(conversation: Conversation): ChatPart[][] {
    return withContent(inWordsOf(this, conversation), (own) => this.#documents(own));
  }

  /**
   * What the model sees where message `i` is its answer, and what the template writes of that
   * answer, up to the token that ends it.
   * @throws {UsageError} as documents
   */
  question(conversation: Conversation, i: number): { readonly asked: string; answer: string } {
    return withContent(inWordsOf(this, conversation), (own) => {
      const { asked, text } = this.#answered(own, i);
      return { asked, answer: this.#withoutTail(text).slice(asked.length) };
    });
  }

  /** The text that asks for message `i`, and the text that ends with it. */
  #answered({ messages, values }: Conversation, i: number) {
    const asked = this.render(messages.slice(0, i), { asks: true, values });
    const text = this.render(messages.slice(0, i + 1), { values });
    if (!text.startsWith(asked)) {
      throw unasked(i);
    }
    return { asked, text };
  }

  #documents(conversation: Conversation): ChatPart[][] {
    const { messages, values, unlearnt } = conversation;
    const whole = this.render(messages, { values });
    this.#requireAllRead(conversation, whole);
    const drafts: Draft[] = [{ text: whole, answers: [] }];
    for (let i = messages.length - 1; i >= 0; i--) {
      const isAnswer = messages[i]!.role === 'assistant';
      if (!isAnswer || unlearnt?.has(i) === true) {
        if (!isAnswer) {
          this.#requireTrace(conversation, i, whole);
        }
        continue;
      }
      const { asked, text } = this.#answered(conversation, i);
      this.#requireTrace({ ...conversation, messages: messages.slice(0, i + 1) }, i, text);
      const answer = {
        start: asked.length,
        end: Math.max(asked.length, this.#withoutTail(text).length),
      };
      const isIn = ({ text: longer, answers }: Draft) =>
        longer.startsWith(text) && answer.end <= (answers[0]?.start ?? longer.length);
      const draft = drafts.find(isIn);
      if (draft === undefined) {
        drafts.push({ text, answers: [answer] });
      } else {
        draft.answers.unshift(answer);
      }
    }
    const useful = drafts.filter(({ answers }) => answers.length > 0).reverse();
    return (useful.length === 0 ? drafts : useful).map((draft) => this.#parts(draft));
  }

  #parts({ text, answers }: Draft): ChatPart[] {
    let at = 0;
    const parts = answers.flatMap(({ start, end }) => {
      const before = text.slice(at, start);
      at = end;
      return [
        { text: before, isAnswer: false },
        { text: text.slice(start, end), isAnswer: true },
      ];
    });
    return [...parts, { text: this.#withoutTail(text).slice(at), isAnswer: false }];
  }

  /** Refuses what stands beside the messages and gets lost, or would have been read. */
  #requireAllRead({ messages, values = {}, others = {} }: Conversation, whole: string): void {
    const ignored = ['tools', 'documents'].find((name) => {
      const { [name]: value, ...rest } = values;
      return value !== undefined && this.#rendersAs(whole, messages, rest);
    });
    if (ignored !== undefined) {
      throw new UsageError(
        `the model's chat template writes nothing of "${ignored}", so the model would learn without what it is given later. Leave "${ignored}" out, or give a chat_template.jinja that writes it.`,
      );
    }
    const isUnread = (variables: Conversation['values']) =>
      this.#rendersAs(whole, messages, { ...variables, ...values });
    const names = Object.keys(others);
    if (names.length === 0 || isUnread(others)) {
      return;
    }
    const read = names.find((name) => !isUnread({ [name]: others[name] })) ?? names.join(', ');
    throw new UsageError(
      `"${read}" beside the messages is a variable of the model's chat template. Write it as "chat_template_kwargs": {"${read}": ...} if that is meant, or rename it.`,
    );
  }

  /** Refuses a message of which something is not written. */
  #requireTrace({ messages, values }: Conversation, i: number, text: string): void {
    const message = messages[i]!;
    const lost = SAID.find((field) => {
      const { [field]: said, ...rest } = message;
      const words = typeof said === 'string' ? said.trim() : undefined;
      if (said === undefined || said === null || words === '') {
        return false;
      }
      if (words !== undefined && words.length >= TELLING_CHARS && text.includes(words)) {
        return false;
      }
      const other = field === 'content' ? { ...rest, content: `${String(said)}?` } : rest;
      const changed = messages.map((turn, k) => (k === i ? (other as ChatMessage) : turn));
      return this.#rendersAs(text, changed, values);
    });
    if (lost !== undefined) {
      throw new UsageError(
        `the model's chat template writes nothing of "${lost}" of message ${i + 1} (${message.role}). Give a model or a chat_template.jinja that knows it, or say it in another way.`,
      );
    }
  }

  #rendersAs(
    text: string,
    messages: readonly ChatMessage[],
    values: Conversation['values'],
  ): boolean {
    try {
      return this.render(messages, { values }) === text;
    } catch {
      return false;
    }
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

/**
 * Reads a conversation as it is and, where that fails, with empty texts for messages without
 * content: some templates ask whether there is any, and others add it to a text.
 */
function withContent<T>(conversation: Conversation, read: (conversation: Conversation) => T): T {
  try {
    return read(conversation);
  } catch (error) {
    const { messages } = conversation;
    if (messages.every(({ content }) => content !== null)) {
      throw error;
    }
    const filled = messages.map((message) => ({ ...message, content: message.content ?? '' }));
    return read({ ...conversation, messages: filled });
  }
}

/** A text that may become a document, and its answers in order. */
interface Draft {
  readonly text: string;
  readonly answers: { readonly start: number; readonly end: number }[];
}

/** The characters of a message that hardly stand in a text by chance. */
const TELLING_CHARS = 24;

/** The fields of a message that say something. */
const SAID = ['content', 'tool_calls', 'function_call', 'reasoning_content', 'thinking'];

function unasked(i: number): UsageError {
  return new UsageError(
    i === 0
      ? "message 1 (assistant) has nothing before it, where the model's chat template writes something of its own, such as a default system message, as soon as there is a message. Put a system or a user message first."
      : `the model's chat template writes message ${i + 1} (assistant) in another way than it asks for it, so what the model would be asked for can't be told apart. Give it roles in an order that it takes, or another chat_template.jinja.`,
  );
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
