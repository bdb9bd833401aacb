// A conversation on a terminal or from a file: each line that somebody gives is a turn.

import { createInterface } from 'node:readline';
import type { ChatMessage, Conversation } from '../data/chat-template.js';
import { readCalls, type ToolCall } from '../data/tool-calls.js';
import type { Briefing } from './briefing.js';

/** Who answers. */
export interface Speaker {
  /** Writes the answer to a conversation, and returns it. */
  answer(messages: readonly ChatMessage[], values: Conversation['values']): Promise<string>;
}

export interface ConverseOptions {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  readonly err: { write(text: string): unknown };
  readonly signal: AbortSignal;
}

/**
 * Answers each line of the input. Behind an answer that calls tools stand the results of its calls,
 * a line each in their order; it goes on when all of them are there.
 */
export async function converse(
  speaker: Speaker,
  { input, err, signal }: ConverseOptions,
  briefing: Briefing,
): Promise<void> {
  const messages = [...briefing.messages];
  const lines = createInterface({ input, signal });
  const show = (text: string) => input.isTTY === true && err.write(text);
  let calls: readonly ToolCall[] = []; // those whose results are not there yet
  const ask = () => show(calls.length > 0 ? `${calls[0]!.name ?? 'tool'}> ` : '> ');
  ask();
  for await (const line of lines) {
    if (line.trim() !== '') {
      const [call, ...others] = calls;
      messages.push(
        call === undefined
          ? { role: 'user', content: line }
          : { role: 'tool', name: call.name, content: line },
      );
      calls = others;
      if (calls.length === 0) {
        const said = await speaker.answer(messages, briefing.values);
        messages.push({ role: 'assistant', content: said });
        calls = briefing.hasTools ? readCalls(said) : [];
      }
    }
    ask();
  }
  signal.throwIfAborted();
  show('\n');
}
