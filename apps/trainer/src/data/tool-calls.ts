// The calls of tools in what a model says, by the format in which its template writes them.

/** A call, or what was meant as one and can't be read: then it has no name. */
export interface ToolCall {
  readonly name: string | undefined;
  readonly arguments: Readonly<Record<string, unknown>>;
  /** As it was written, without what marks a call. */
  readonly text: string;
}

export interface ToolFormat {
  /** For people: the families whose templates write so. */
  readonly name: string;
  /** The calls in an answer, in order. */
  read(answer: string): readonly ToolCall[];
}

/** `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`, one or several. */
const HERMES: ToolFormat = {
  name: 'Qwen 3 and SmolLM3',
  read: (answer) => marked(answer, '<tool_call>', '</tool_call>').map(readJson),
};

/** `{"name": "add", "parameters": {"a": 1}}` as the whole answer. */
const LLAMA: ToolFormat = {
  name: 'Llama 3.1',
  read: (answer) => {
    const said = answer.replace(/<\|e[a-z]+_id\|>\s*$/, '').trim();
    const text = said.replace(/^<\|python_tag\|>/, '').trim();
    const isMarked = text !== said;
    const call = readJson(text);
    return text.startsWith('{') && (call.name !== undefined || isMarked) ? [call] : [];
  },
};

/** `<start_function_call>call:add{a:1,b:<escape>one<escape>}<end_function_call>`. */
const FUNCTION_GEMMA: ToolFormat = {
  name: 'FunctionGemma',
  read: (answer) =>
    marked(answer, '<start_function_call>', '<end_function_call>').map((text) => {
      const [, name, rest] = /^call:([\w.-]+)(\{[\s\S]*)$/.exec(text) ?? [];
      const value = rest === undefined ? undefined : new GemmaValues(rest).whole();
      return isObject(value) ? { name, arguments: value, text } : { ...UNREAD, text };
    }),
};

export const TOOL_FORMATS: readonly ToolFormat[] = [HERMES, FUNCTION_GEMMA, LLAMA];

/** The calls of an answer in any of the formats, where its template is not known. */
export function readCalls(answer: string): readonly ToolCall[] {
  return TOOL_FORMATS.map((format) => format.read(answer)).find(({ length }) => length > 0) ?? [];
}

/** Whether two lists have the same calls, in any order, as far as `isSame` looks. */
export function sameCalls(
  some: readonly ToolCall[],
  others: readonly ToolCall[],
  isSame: (a: ToolCall, b: ToolCall) => boolean,
): boolean {
  const left = [...others];
  for (const call of some) {
    const at = left.findIndex((other) => isSame(call, other));
    if (at < 0) {
      return false;
    }
    left.splice(at, 1);
  }
  return left.length === 0;
}

/** How two calls are compared; each looks at less than the one before. */
export const COMPARED = {
  /** The same characters. */
  exact: (a: ToolCall, b: ToolCall) => a.text === b.text,
  /** The same name, and arguments that are equal as JSON, whatever the order of their names. */
  json: (a: ToolCall, b: ToolCall) => isNamed(a, b) && sorted(a.arguments) === sorted(b.arguments),
  name: isNamed,
} as const;

const UNREAD = { name: undefined, arguments: {} } as const;

function isNamed(a: ToolCall, b: ToolCall): boolean {
  return a.name !== undefined && a.name === b.name;
}

/** The texts between marks; the last may lack its end, where the answer was cut off. */
function marked(answer: string, begin: string, end: string): string[] {
  return answer
    .split(begin)
    .slice(1)
    .map((part) => part.split(end)[0]!.trim());
}

function readJson(text: string): ToolCall {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { ...UNREAD, text };
  }
  if (!isObject(value)) {
    return { ...UNREAD, text };
  }
  const { name, arguments: given = value.parameters } = value;
  return typeof name === 'string' && isObject(given)
    ? { name, arguments: given, text }
    : { ...UNREAD, text };
}

/** JSON in which the names of each object are in order. */
function sorted(value: unknown): string {
  return JSON.stringify(value, (_, held: unknown) =>
    isObject(held)
      ? Object.fromEntries(Object.entries(held).sort(([a], [b]) => (a < b ? -1 : 1)))
      : held,
  );
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const ESCAPE = '<escape>';

/** Reads the values of FunctionGemma: like JSON, but names are bare and texts between <escape>. */
class GemmaValues {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  /** The value that is the whole text; undefined where it is none. */
  whole(): unknown {
    try {
      const value = this.#value();
      return this.#at === this.#text.length ? value : undefined;
    } catch (error) {
      if (error instanceof SyntaxError) {
        return undefined;
      }
      throw error;
    }
  }

  #value(): unknown {
    if (this.#takes(ESCAPE)) {
      return this.#until(ESCAPE);
    }
    if (this.#takes('{')) {
      return Object.fromEntries(this.#items('}', () => [this.#until(':'), this.#value()]));
    }
    if (this.#takes('[')) {
      return this.#items(']', () => this.#value());
    }
    const [bare = ''] = /^[^,\]}]*/.exec(this.#text.slice(this.#at)) ?? [];
    this.#at += bare.length;
    return JSON.parse(bare) as unknown; // a number, true, false or null
  }

  #items<T>(end: string, item: () => T): T[] {
    const items: T[] = [];
    while (!this.#takes(end)) {
      if (items.length > 0 && !this.#takes(',')) {
        throw new SyntaxError(`expected , or ${end}`);
      }
      items.push(item());
    }
    return items;
  }

  /** The text before a mark, which is passed. */
  #until(mark: string): string {
    const end = this.#text.indexOf(mark, this.#at);
    if (end < 0) {
      throw new SyntaxError(`expected ${mark}`);
    }
    const text = this.#text.slice(this.#at, end);
    this.#at = end + mark.length;
    return text;
  }

  #takes(mark: string): boolean {
    const isThere = this.#text.startsWith(mark, this.#at);
    this.#at += isThere ? mark.length : 0;
    return isThere;
  }
}
