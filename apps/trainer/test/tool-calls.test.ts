// Calls of tools are read from answers as the templates of four families write them, worked out by
// hand from their model cards.

import { describe, expect, it } from 'vitest';
import { COMPARED, readCalls, sameCalls, TOOL_FORMATS } from '../src/data/tool-calls.js';

const plain = (answer: string) =>
  readCalls(answer).map(({ name, arguments: given }) => [name, given]);
const of = (family: string) => TOOL_FORMATS.find(({ name }) => name.includes(family))!;

describe('calls are read', () => {
  it.each([
    [
      'as Qwen 3 and SmolLM3 write them',
      '<think>\n\n</think>\n\n<tool_call>\n{"name": "light", "arguments": {"room": "hall", "on": true}}\n</tool_call>\n<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>',
      [
        ['light', { room: 'hall', on: true }],
        ['wait', {}],
      ],
    ],
    [
      'as Llama 3.1 writes them',
      '{"name": "light", "parameters": {"room": "hall"}}<|eot_id|>',
      [['light', { room: 'hall' }]],
    ],
    [
      'as Llama 3.1 writes those that a program is to run',
      '<|python_tag|>{"name": "light", "parameters": {}}<|eom_id|>',
      [['light', {}]],
    ],
    [
      'as FunctionGemma writes them',
      '<start_function_call>call:light{room:<escape>the {big}, old hall<escape>,level:-2.5e1,on:true,of:[1,<escape>b<escape>],at:{hour:7}}<end_function_call><start_function_call>call:wait{}<end_function_call>',
      [
        [
          'light',
          { room: 'the {big}, old hall', level: -25, on: true, of: [1, 'b'], at: { hour: 7 } },
        ],
        ['wait', {}],
      ],
    ],
    ['that are none', 'It is {"name": "hall"}.', []],
    ['in an answer of JSON that is no call', '{"rooms": 3}', []],
  ] as const)('%s', (_, answer, calls) => {
    expect(plain(answer)).toEqual(calls);
  });

  it.each([
    ['broken JSON', '<tool_call>{"name": "light", "arguments": {</tool_call>'],
    ['cut off', '<tool_call>{"name": "lig'],
    ['without arguments', '<tool_call>{"name": "light"}</tool_call>'],
    ['a list', '<tool_call>["light"]</tool_call>'],
    ['an open text', '<start_function_call>call:light{room:<escape>hall}<end_function_call>'],
    ['no comma', '<start_function_call>call:light{a:[1]b:2}<end_function_call>'],
    ['a bare word', '<start_function_call>call:light{room:hall}<end_function_call>'],
    ['words after it', '<start_function_call>call:light{a:1} now<end_function_call>'],
  ])('a call that is %s has no name', (_, answer) => {
    expect(plain(answer)).toEqual([[undefined, {}]]);
  });

  it('a format reads no other', () => {
    const llama = '{"name": "light", "parameters": {}}';
    expect(of('Qwen').read(llama)).toEqual([]);
    expect(of('Llama').read(llama)).toHaveLength(1);
    expect(of('Llama').read(`<tool_call>${llama}</tool_call>`)).toEqual([]);
  });
});

describe('two lists', () => {
  const [a, reordered, spaced, other, broken] = [
    '<tool_call>{"name": "f", "arguments": {"x": 1, "y": {"b": 2, "a": [1, 2]}}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"y": {"a": [1, 2], "b": 2}, "x": 1.0}}</tool_call>',
    '<tool_call> {"name":  "f", "arguments": {"x": 1, "y": {"b": 2, "a": [1, 2]}}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"x": 1, "y": {"b": 2, "a": [2, 1]}}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": </tool_call>',
  ].map(readCalls) as [ReturnType<typeof readCalls>, ...ReturnType<typeof readCalls>[]];
  const how = (b: typeof a) => Object.values(COMPARED).map((isSame) => sameCalls(a, b, isSame));

  it('calls are compared by their text, as JSON, and by name', () => {
    expect(how(a)).toEqual([true, true, true]);
    expect(how(reordered!)).toEqual([false, true, true]);
    expect(how(spaced!)).toEqual([false, true, true]);
    expect(how(other!)).toEqual([false, false, true]);
    expect(how(broken!)).toEqual([false, false, false]);
    expect(sameCalls(broken!, broken!, COMPARED.name)).toBe(false);
  });

  it('calls may come in any order, each as often as it is there', () => {
    const { json } = COMPARED;
    expect(sameCalls([...a, ...other!], [...other!, ...a], json)).toBe(true);
    expect(sameCalls([...a, ...a], a, json)).toBe(false);
    expect(sameCalls(a, [...a, ...a], json)).toBe(false);
    expect(sameCalls([...a, ...a], [...a, ...other!], json)).toBe(false);
    expect(sameCalls([], [], json)).toBe(true);
  });
});
