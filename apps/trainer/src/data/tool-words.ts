// Tools and calls in the words of a template. Most have `tools` and `tool_calls`; SmolLM3's has
// `xml_tools`, which it writes as Python does, and takes calls as text.

import { Template } from '@huggingface/jinja';
import type { ChatMessage, Conversation } from './conversation.js';
import { pythonText } from './python-text.js';

/** A template that writes messages. */
export interface ToolTemplate {
  /** The text of the template. */
  readonly text: string;
  render(
    messages: readonly ChatMessage[],
    options: { readonly values?: Conversation['values'] },
  ): string;
}

type Values = NonNullable<Conversation['values']>;

/** The variable in which a template gets tools; undefined where it writes nothing of them. */
export function toolValues(
  template: ToolTemplate,
  messages: readonly ChatMessage[],
  { values = {}, tools }: { readonly values?: Values; readonly tools: readonly unknown[] },
): Values | undefined {
  const bare = written(template, messages, values);
  const choices = [{ tools }, { xml_tools: tools.map(pythonText) }];
  return choices.find((own) => written(template, messages, { ...values, ...own }) !== bare);
}

/**
 * The conversation for a template that tells the model to call by `<tool_call>`, but reads no
 * `tool_calls`; for any other it stays as it is.
 */
export function inWordsOf(template: ToolTemplate, conversation: Conversation): Conversation {
  const { messages, values = {} } = conversation;
  const { tools, ...rest } = values;
  const hasCalls = messages.some(({ tool_calls: calls }) => Array.isArray(calls));
  if (!template.text.includes('<tool_call>') || (tools === undefined && !hasCalls)) {
    return conversation;
  }
  const own = Array.isArray(tools)
    ? toolValues(template, messages.slice(0, 1), { values: rest, tools })
    : undefined;
  return {
    ...conversation,
    messages: messages.map((message) =>
      readsCalls(template, message) ? message : spelled(message),
    ),
    values: own === undefined ? values : { ...rest, ...own },
  };
}

/** What is written; undefined where the template refuses it. */
function written(
  template: ToolTemplate,
  messages: readonly ChatMessage[],
  values: Values,
): string | undefined {
  try {
    return template.render(messages, { values });
  } catch {
    return undefined;
  }
}

/** Whether the calls of a message are written. */
function readsCalls(template: ToolTemplate, message: ChatMessage): boolean {
  const { tool_calls: calls, content, ...rest } = message;
  const bare: ChatMessage = { ...rest, content: content ?? '' };
  const after = (last: ChatMessage) =>
    written(template, [{ role: 'user', content: '?' }, last], {});
  return after(bare) !== after({ ...bare, tool_calls: calls });
}

const CALL = new Template('<tool_call>\n{{ call | tojson }}\n</tool_call>');

/** A message whose calls stand in its content. */
function spelled({ tool_calls: calls, ...message }: ChatMessage): ChatMessage {
  if (!Array.isArray(calls)) {
    return message;
  }
  const texts = calls.map((call: Readonly<Record<string, unknown>>) =>
    CALL.render({ call: call.function ?? call }),
  );
  return { ...message, content: [message.content || [], texts].flat().join('\n') };
}
