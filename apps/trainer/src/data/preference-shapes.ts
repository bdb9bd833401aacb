// Pairs of answers of which one is preferred, in the shapes in which people keep them. Each answer
// becomes a line of prompt and completion, or a conversation, as the task of language reads it.

import { UsageError } from '../errors.js';
import { excerpt, isEmpty, messagesIn, parsed, type Turn, words } from './line-shapes.js';

type Fields = Readonly<Record<string, unknown>>;

export const PREFERENCE_SHAPES =
  '{"prompt", "chosen", "rejected"}, of texts or of messages [{"role", "content"}]';

/** A question's field in other people's data, and the name that its answer has there. */
const ASKED: Readonly<Record<string, string>> = {
  instruction: 'output',
  input: 'output',
  question: 'answer',
};

/** The two documents of a line, each a prompt with an answer. */
export interface PreferenceLine {
  readonly chosen: Fields;
  readonly rejected: Fields;
}

/**
 * Reads a line's object.
 * @throws {UsageError} without the place, which the caller knows
 */
export function readPreference(value: Fields): PreferenceLine {
  // Some data sets repeat the chosen answer as a document of its own.
  const { text: _, completion: __, messages: ___, conversations: ____, ...own } = value;
  const { prompt: given, chosen: good, rejected: bad, ...rest } = own;
  const [prompt, chosen, rejected] = [given, good, bad].map(listed);
  const asked = Object.keys(ASKED).find((name) => name in value);
  const isText = !Array.isArray(chosen);
  if (isEmpty(chosen) || isEmpty(rejected) || (isText && isEmpty(prompt) && asked === undefined)) {
    const keys = Object.entries(value).flatMap(([name, held]) =>
      isEmpty(held) ? [] : [JSON.stringify(name)],
    );
    throw new UsageError(
      `expected ${PREFERENCE_SHAPES}, got an object with ${keys.join(', ') || 'nothing in it'}. Rename the fields.`,
    );
  }
  if (Array.isArray(chosen) !== Array.isArray(rejected)) {
    throw new UsageError(
      'expected "chosen" and "rejected" to be two texts or two lists of messages, got one of each. Write both in one way.',
    );
  }
  if (!isText) {
    return conversations(rest, { prompt, chosen, rejected });
  }
  const [one, other] = [words(value, 'chosen'), words(value, 'rejected')];
  if (one === other) {
    throw alike();
  }
  if (Array.isArray(prompt)) {
    const answered = (content: string) => ({
      ...{ ...rest, prompt, completion: [{ role: 'assistant', content }] },
    });
    return { chosen: answered(one), rejected: answered(other) };
  }
  const of = (answer: string) =>
    isEmpty(prompt)
      ? { ...rest, [ASKED[asked!]!]: answer }
      : { ...rest, prompt, completion: answer };
  return { chosen: of(one), rejected: of(other) };
}

/** A list of messages, also where a table holds it as JSON text; else what was given. */
function listed(value: unknown): unknown {
  return typeof value === 'string' && /^\s*\[\s*\{/.test(value) ? (parsed(value) ?? value) : value;
}

interface Lists {
  readonly prompt: unknown;
  readonly chosen: unknown;
  readonly rejected: unknown;
}

/** Messages: what both begin with is asked, behind the messages of a prompt. */
function conversations(rest: Fields, { prompt, chosen, rejected }: Lists): PreferenceLine {
  const [one, other] = [messagesIn(chosen, 'chosen'), messagesIn(rejected, 'rejected')];
  const differing = one.findIndex((message, i) => !isSame(message, other[i]));
  const shared = differing < 0 ? one.length : differing;
  if (shared === one.length && shared === other.length) {
    throw alike();
  }
  const asked = [...before(prompt, one.slice(0, shared)), ...one.slice(0, shared)];
  for (const [name, all] of Object.entries({ chosen: one, rejected: other })) {
    const own = all.slice(shared);
    if (own.length !== 1 || own[0]!.role !== 'assistant') {
      throw new UsageError(
        `expected one answer of the assistant in "${name}" after what both answers share, got ${own.length === 0 ? 'none' : own.map(({ role }) => role).join(', ')}. End both behind the first answer that differs.`,
      );
    }
  }
  if (asked.length === 0) {
    throw new UsageError(
      'expected "prompt", or messages with which "chosen" and "rejected" both begin, got answers alone. Add what they answer.',
    );
  }
  const of = (all: readonly Turn[]) => ({
    ...{ ...rest, prompt: asked.map(plain), completion: all.slice(shared).map(plain) },
  });
  return { chosen: of(one), rejected: of(other) };
}

/** The messages of a prompt that stands beside; a text may be quoted from the messages. */
function before(prompt: unknown, shared: readonly Turn[]): readonly Turn[] {
  if (isEmpty(prompt)) {
    return [];
  }
  if (Array.isArray(prompt)) {
    const asked = messagesIn(prompt, 'prompt');
    const isWhole = asked.every((message, i) => isSame(message, shared[i]));
    return isWhole ? [] : asked; // whole conversations begin with their prompt
  }
  if (shared.length === 0) {
    return [{ role: 'user', content: words({ prompt }, 'prompt') }];
  }
  if (shared.some(({ content }) => content === prompt)) {
    return [];
  }
  throw new UsageError(
    `expected "prompt" to be one of the messages with which both answers begin, got ${excerpt(JSON.stringify(prompt))}. Put it into the messages, or leave it out.`,
  );
}

/** A message without what reading has added. */
function plain({ isLearnt: _, ...message }: Turn): Fields {
  return message;
}

function isSame(one: Turn, other: Turn | undefined): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

function alike(): UsageError {
  return new UsageError(
    'expected two answers, got the same one as "chosen" and "rejected". Leave the line out: nothing is preferred.',
  );
}
