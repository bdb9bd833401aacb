// A conversation with tools: what stands behind an answer with calls are their results, each under
// the name of its own call.

import { Readable } from 'node:stream';
import { expect, it } from 'vitest';
import { type ChatMessage, ChatTemplate } from '../src/data/chat-template.js';
import { Briefing } from '../src/generate/briefing.js';
import { converse } from '../src/generate/converse.js';

const chat = new ChatTemplate('{{ (tools or []) | length }}{{ messages[-1].content }}', {
  specials: {},
  ends: [],
});
const call = (name: string) => `<tool_call>{"name": "${name}", "arguments": {}}</tool_call>`;

/** What a conversation asks, when the model says `answers` one after the other. */
async function asked(lines: string, answers: readonly string[], hasTools = true) {
  const left = [...answers];
  const seen: ChatMessage[][] = [];
  let shown = '';
  const speaker = {
    answer: async (messages: readonly ChatMessage[]) => {
      seen.push(messages.slice(seen.flat().length + seen.length)); // those since the last answer
      return left.shift()!;
    },
  };
  const tools = hasTools ? [{ name: 'light' }, { name: 'wait' }] : undefined;
  const input = Object.assign(Readable.from([lines]), { isTTY: true });
  const err = { write: (text: string) => (shown += text) };
  const { signal } = new AbortController();
  const briefing = new Briefing(chat, { system: undefined, tools: undefined }, tools);
  await converse(speaker, { input, err, signal }, briefing);
  expect(left).toEqual([]);
  return { seen, shown };
}

it('takes a line for each call, in their order, before the model goes on', async () => {
  const answers = [call('light') + call('wait'), 'Both are done.', 'Bye.'];
  const { seen, shown } = await asked('on, then wait\nlit\n\nwaited\nthanks\n', answers);
  expect(seen).toEqual([
    [{ role: 'user', content: 'on, then wait' }],
    [
      { role: 'tool', name: 'light', content: 'lit' },
      { role: 'tool', name: 'wait', content: 'waited' },
    ],
    [{ role: 'user', content: 'thanks' }],
  ]);
  expect(shown).toBe('> light> wait> wait> > > \n');
});

it('takes an answer without tools as words, whatever it looks like', async () => {
  const { seen, shown } = await asked('hi\nso\n', [call('light'), 'well'], false);
  expect(seen[1]).toEqual([{ role: 'user', content: 'so' }]);
  expect(shown).toBe('> > > \n');
});
