// What a conversation begins with before anybody has said a word: a system message, and the tools
// that the model may call.

import { readFileSync } from 'node:fs';
import type { ChatMessage, ChatTemplate, Conversation } from '../data/chat-template.js';
import { toolValues } from '../data/tool-words.js';
import { UsageError } from '../errors.js';
import { describeSystemError } from '../system-error.js';
import type { GenerateFlags } from './generate-flags.js';

export class Briefing {
  readonly messages: readonly ChatMessage[];
  /** The variables of the template. */
  readonly values: NonNullable<Conversation['values']>;
  readonly hasTools: boolean;

  /** @throws {UsageError} where the template writes nothing of it */
  constructor(
    chat: ChatTemplate,
    { system, tools: path }: Pick<GenerateFlags, 'system' | 'tools'>,
    tools: readonly unknown[] | undefined,
  ) {
    this.messages = system === undefined ? [] : [{ role: 'system', content: system }];
    this.hasTools = tools !== undefined;
    const asked = [...this.messages, { role: 'user', content: '?' }];
    const bare = chat.render(asked);
    if (system !== undefined && !bare.includes(system.trim())) {
      throw new UsageError(
        "--system: the model's chat template writes nothing of a system message. Say it in the first line of the conversation.",
      );
    }
    const values = tools && toolValues(chat, asked, { tools });
    if (tools !== undefined && values === undefined) {
      throw new UsageError(
        `--tools ${path}: the model's chat template writes nothing of tools, so the model would not know them. Say in --system what it may call, or give another chat_template.jinja.`,
      );
    }
    this.values = values ?? {};
  }
}

/**
 * The tools of a file.
 * @throws {UsageError} where it can't be read, or holds no list of tools
 */
export function readTools(path: string): readonly unknown[] {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    const why = cause instanceof SyntaxError ? cause.message : describeSystemError(cause);
    throw new UsageError(`--tools: ${path} can't be read (${why}). ${WANTED}`, { cause });
  }
  const isTool = (item: unknown) =>
    typeof item === 'object' && item !== null && !Array.isArray(item);
  if (!Array.isArray(value) || value.length === 0 || !value.every(isTool)) {
    throw new UsageError(`--tools: ${path} holds no list of tools. ${WANTED}`);
  }
  return value as readonly unknown[];
}

const WANTED =
  'Give a file with a list such as [{"type": "function", "function": {"name", "description", "parameters"}}], as "tools" has it in data.';
