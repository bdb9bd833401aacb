// The shapes in which people keep documents, read into one form: parts of a text, or a conversation
// for the model's chat template. SHAPES and PAIRS are the tables of what a line may hold.

import { UsageError } from '../errors.js';
import type { ChatMessage, ChatPart, Conversation } from './chat-template.js';

/** What a line says: a text in parts, or a conversation that a template writes. */
export type Document =
  | { readonly parts: readonly ChatPart[] }
  | { readonly conversation: Conversation; readonly field: string };

type Fields = Readonly<Record<string, unknown>>;

/** The most characters of a line that a message shows, because a message is one line. */
const EXCERPT_CHARS = 60;

export const SHAPE_NAMES =
  '{"text"}, {"prompt", "completion"} or {"messages": [{"role", "content"}]}';

/** The shapes, by a field that only they have; a line has one of them. */
const SHAPES: Readonly<Record<string, (value: Fields) => Document>> = {
  text: (value) => ({ parts: [{ text: words(value, 'text'), isAnswer: true }] }),
  prompt: promptAndCompletion,
  completion: promptAndCompletion,
  messages: (value) => conversationOf(value, 'messages', messagesIn(value.messages)),
  conversations: (value) => conversationOf(value, 'conversations', messagesIn(value.conversations)),
};

/** A question's fields, the first of which has to be there, and the field of its answer. */
const PAIRS: readonly { readonly asks: readonly string[]; readonly answer: string }[] = [
  { asks: ['instruction', 'input'], answer: 'output' },
  { asks: ['input'], answer: 'output' },
  { asks: ['question'], answer: 'answer' },
];

/** The fields of a line that templates read as variables of that name. */
const VALUES = ['tools', 'documents'];
/** The fields that hold a system message which stands beside the other messages. */
const SYSTEM = ['system', 'system_prompt'];
/** The fields that change what should be learnt, and that no template is given. */
const UNREAD = ['context', 'history', 'images', 'image', 'audio', 'video', 'functions'];

/** The roles of ShareGPT's `from`; its `function_call` is what the assistant says. */
const SPEAKERS: Readonly<Record<string, string>> = {
  human: 'user',
  user: 'user',
  gpt: 'assistant',
  assistant: 'assistant',
  system: 'system',
  tool: 'tool',
  observation: 'tool',
  function_response: 'tool',
  function_call: 'assistant',
};

/**
 * Reads a line's object.
 * @throws {UsageError} without the place, which the caller knows
 */
export function readDocument(value: Fields): Document {
  const named = Object.keys(SHAPES).filter((name) => name in value);
  const filled = named.length > 1 ? named.filter((name) => value[name] !== null) : named;
  const isChat = filled.includes('messages') || filled.includes('conversations');
  // UltraChat's rows have the first question beside the conversation that begins with it.
  const isQuoted = isChat && !filled.includes('completion');
  const shapes = filled.filter((name) => !(isQuoted && name === 'prompt'));
  const readers = new Set(shapes.map((name) => SHAPES[name]!));
  const [read] = readers;
  if (read !== undefined && readers.size === 1) {
    return read(value);
  }
  const pair = PAIRS.find(({ asks, answer }) => asks[0]! in value && answer in value);
  if (pair !== undefined && read === undefined) {
    return pairOf(value, pair);
  }
  const keys = Object.keys(value).map((key) => JSON.stringify(key));
  throw new UsageError(
    `expected one of ${SHAPE_NAMES}, got an object with ${keys.length === 0 ? 'nothing in it' : keys.join(', ')}. Rename the fields.`,
  );
}

/** The fields of documents that are read in a table with these; see NeededFields. */
export function neededFields(names: readonly string[]): readonly string[] | undefined {
  const shapes = Object.keys(SHAPES).filter((name) => names.includes(name));
  return shapes.length === 1 && shapes[0] === 'text' ? shapes : undefined;
}

/** The roles of a document's messages, each once; of a text there are none. */
export function rolesIn(value: Fields): string[] {
  const document = readDocument(value);
  const messages = 'parts' in document ? [] : document.conversation.messages;
  return [...new Set(messages.map(({ role }) => role))];
}

function promptAndCompletion(value: Fields): Document {
  const { prompt, completion } = value;
  if (!Array.isArray(prompt) || !Array.isArray(completion)) {
    return {
      parts: [
        { text: words(value, 'prompt'), isAnswer: false },
        { text: words(value, 'completion'), isAnswer: true },
      ],
    };
  }
  const asked = messagesIn(prompt, 'prompt');
  const all = [
    ...asked.map((message) => ({ ...message, isLearnt: false })),
    ...messagesIn(completion, 'completion'),
  ];
  return conversationOf(value, 'prompt', all);
}

function pairOf(value: Fields, { asks, answer }: (typeof PAIRS)[number]): Document {
  const [first, ...more] = asks;
  const question = [words(value, first!), ...more.map((name) => value[name] ?? '')];
  const other = question.find((text) => typeof text !== 'string');
  if (other !== undefined) {
    throw notWords(more[0]!, other);
  }
  const messages: Turn[] = [
    { role: 'user', content: question.filter((text) => text !== '').join('\n\n') },
    { role: 'assistant', content: words(value, answer) },
  ];
  const rest = Object.entries(value).filter(([name]) => !asks.includes(name) && name !== answer);
  return conversationOf(Object.fromEntries(rest), first!, messages);
}

/** A message, and whether it is learnt where it is an answer. */
export interface Turn extends ChatMessage {
  readonly isLearnt?: boolean;
}

function conversationOf(value: Fields, field: string, turns: readonly Turn[]): Document {
  const unread = UNREAD.find((name) => !isEmpty(value[name]));
  if (unread !== undefined) {
    throw new UsageError(
      `expected all that matters in messages, got "${unread}" beside them, which is not read. Put it into the messages${unread === 'functions' ? ' or into "tools"' : ''}, or leave it out.`,
    );
  }
  const system = SYSTEM.find((name) => !isEmpty(value[name]));
  if (system !== undefined && turns[0]?.role === 'system') {
    throw new UsageError(
      `expected one system message, got "${system}" beside messages that begin with one. Leave one out.`,
    );
  }
  const all: readonly Turn[] =
    system === undefined ? turns : [{ role: 'system', content: words(value, system) }, ...turns];
  const { chat_template_kwargs: options, ...rest } = value;
  const values: Record<string, unknown> = { ...optionsIn(options) };
  for (const name of VALUES.filter((field) => !isEmpty(value[field]))) {
    values[name] = listIn(value[name], name);
  }
  const known = [...VALUES, ...SYSTEM, ...Object.keys(SHAPES)];
  const others = Object.entries(rest).filter(
    ([name, held]) => !known.includes(name) && held !== null,
  );
  return {
    field,
    conversation: {
      messages: all.map(({ isLearnt: _, ...message }) => message),
      unlearnt: new Set(all.flatMap(({ isLearnt = true }, i) => (isLearnt ? [] : [i]))),
      values,
      others: Object.fromEntries(others),
    },
  };
}

function optionsIn(value: unknown): object {
  const read = typeof value === 'string' ? parsed(value) : (value ?? {});
  if (!isObject(read)) {
    throw new UsageError(
      `expected an object of the template's variables as chat_template_kwargs, got ${excerpt(JSON.stringify(value))}. Write it as {"enable_thinking": false}, for instance.`,
    );
  }
  return read;
}

/** A list, or the JSON text of one, since many tables hold tools as text. */
function listIn(value: unknown, name: string): readonly unknown[] {
  const read = typeof value === 'string' ? parsed(value) : value;
  if (!Array.isArray(read)) {
    throw new UsageError(
      `expected a list as "${name}", got ${excerpt(JSON.stringify(value))}. Write it as JSON: [{...}].`,
    );
  }
  return read as unknown[];
}

export function messagesIn(value: unknown, name = 'messages'): readonly Turn[] {
  const read = typeof value === 'string' ? parsed(value) : value;
  if (!Array.isArray(read) || read.length === 0) {
    throw notMessages(value, name);
  }
  return (read as unknown[]).map((message, i) => messageIn(message, `message ${i + 1}`));
}

function messageIn(one: unknown, place: string): Turn {
  if (!isObject(one)) {
    throw notMessages(one, place);
  }
  const { from, value, weight, ...own } = one;
  const isShareGpt = !('role' in own) && from !== undefined;
  const role = isShareGpt ? speaker(from, place) : own.role;
  const said = isShareGpt && !('content' in own) ? value : own.content;
  const calls = from === 'function_call' && isShareGpt ? callsIn(said, place) : own.tool_calls;
  const isCall = Array.isArray(calls) && calls.length > 0;
  const content = from === 'function_call' && isShareGpt ? null : contentIn(said, place);
  if (typeof role !== 'string' || (typeof content !== 'string' && !isCall)) {
    throw notMessages(one, place);
  }
  // Tables write null into each message for fields that others have.
  const filled = Object.entries(own).filter(([, held]) => held !== null);
  return {
    ...Object.fromEntries(filled),
    role,
    content,
    ...(isCall && { tool_calls: calls.map((call) => callIn(call, place)) }),
    isLearnt: isLearnt(weight, role, place),
  };
}

function isLearnt(weight: unknown, role: string, place: string): boolean {
  const isGood = weight === undefined || weight === null || weight === 0 || weight === 1;
  if (!isGood || (weight === 1 && role !== 'assistant')) {
    throw new UsageError(
      `expected a weight of 0, which excludes an answer of the assistant from the loss, or 1, got ${JSON.stringify(weight)} in ${place} (${role}). Write one of them, or leave it out.`,
    );
  }
  return weight !== 0;
}

function speaker(from: unknown, place: string): string {
  const role = typeof from === 'string' ? SPEAKERS[from] : undefined;
  if (role === undefined) {
    throw new UsageError(
      `expected "from" to be one of ${Object.keys(SPEAKERS).join(', ')}, got ${excerpt(JSON.stringify(from))} in ${place}. Rename it, or write {"role", "content"}.`,
    );
  }
  return role;
}

/** The text of a message; that of several parts is joined as it stands. */
function contentIn(value: unknown, place: string): string | null {
  if (!Array.isArray(value)) {
    return typeof value === 'string' || value === undefined || value === null
      ? (value ?? null)
      : notAText(value, place);
  }
  return (value as unknown[])
    .map((part) => {
      const { type, text } = isObject(part) ? part : {};
      return type === 'text' && typeof text === 'string' ? text : notAText(part, place);
    })
    .join('');
}

function notAText(value: unknown, place: string): never {
  const kind = isObject(value) && typeof value.type === 'string' ? `a part "${value.type}"` : '';
  throw new UsageError(
    `expected content of text, or of parts {"type": "text", "text"}, got ${kind || excerpt(JSON.stringify(value))} in ${place}. Models of text alone are trained here.`,
  );
}

/** What a call may have that has no arguments. */
const OF_CALLS = ['name', 'id', 'type', 'index'];

/**
 * A call whose arguments are an object. OpenAI's interface writes them as JSON text, which a
 * template that writes JSON would put into quotes once more.
 */
function callIn(call: unknown, place: string): unknown {
  if (!isObject(call)) {
    throw new UsageError(
      `expected tool_calls [{"function": {"name", "arguments"}}], got ${excerpt(JSON.stringify(call))} in ${place}. Write each call as such an object.`,
    );
  }
  if (isObject(call.function)) {
    return { ...call, function: callIn(call.function, place) };
  }
  const { arguments: given = {} } = call;
  const others = Object.keys(call).filter((key) => !OF_CALLS.includes(key));
  if (call.arguments === undefined && others.length > 0) {
    throw new UsageError(
      `expected a call's name and arguments, got no arguments and ${others.map((key) => JSON.stringify(key)).join(', ')} in ${place}. Write them as "arguments", or leave others out.`,
    );
  }
  const read = typeof given === 'string' && given !== '' ? parsed(given) : given || {};
  if (!isObject(read)) {
    throw new UsageError(
      `expected the arguments of a call as an object, or its JSON text, got ${excerpt(JSON.stringify(given))} in ${place}. Write them as {"name": value}.`,
    );
  }
  return { ...call, arguments: read };
}

/** The calls of ShareGPT's `function_call`, whose text is the JSON of one or of several. */
function callsIn(value: unknown, place: string): unknown[] {
  const read = typeof value === 'string' ? parsed(value) : value;
  const calls: unknown[] = Array.isArray(read) ? (read as unknown[]) : [read];
  if (calls.length === 0 || !calls.every((call) => isObject(call) && 'name' in call)) {
    throw new UsageError(
      `expected {"name", "arguments"} as JSON text in function_call, got ${excerpt(JSON.stringify(value))} in ${place}. Write the call as such an object.`,
    );
  }
  return calls.map((call) => ({ type: 'function', function: call }));
}

function notMessages(got: unknown, place: string): UsageError {
  return new UsageError(
    `expected messages [{"role", "content"}] of strings, got ${excerpt(JSON.stringify(got))} as ${place}. Write each turn as such an object.`,
  );
}

/** The text of a field. */
export function words(value: Fields, name: string): string {
  const text = value[name];
  if (typeof text !== 'string' || text === '') {
    throw notWords(name, text);
  }
  return text;
}

export function notWords(name: string, got: unknown): UsageError {
  return new UsageError(
    `expected words in "${name}", got ${got === undefined ? 'no such field' : excerpt(JSON.stringify(got))}. Fill it in, or leave the line out.`,
  );
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Whether a field is left out, or holds nothing. */
export function isEmpty(value: unknown): boolean {
  return (
    value === undefined ||
    value === null ||
    value === '' ||
    (Array.isArray(value) && value.length === 0)
  );
}

/** What a JSON text says; undefined where it is none. */
export function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** The beginning of what was found, so that the user can search for it. */
export function excerpt(text: string): string {
  return text.length <= EXCERPT_CHARS ? text : `${text.slice(0, EXCERPT_CHARS)}...`;
}
