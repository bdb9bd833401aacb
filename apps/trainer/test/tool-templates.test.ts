// Conversations with tools as the templates of four families write them. The templates here are
// short ones of our own that keep the rules of theirs; what they write was worked out by hand.

import { describe, expect, it } from 'vitest';
import { ChatTemplate } from '../src/data/chat-template.js';
import { pythonText } from '../src/data/python-text.js';
import { TOOL_FORMATS } from '../src/data/tool-calls.js';
import { Briefing } from '../src/generate/briefing.js';

const TOOLS = [
  {
    type: 'function',
    function: {
      name: 'light',
      description: 'Turns a lamp on.',
      parameters: { type: 'object', properties: { room: { type: 'string' } }, required: ['room'] },
    },
  },
];
const call = (...given: readonly object[]) => ({
  role: 'assistant',
  content: null,
  tool_calls: given.map((values) => ({
    type: 'function',
    function: { name: 'light', arguments: values },
  })),
});
const ASKED = { role: 'user', content: 'On, please.' };
const DONE = { role: 'tool', name: 'light', content: 'lit' };
const SAID = { role: 'assistant', content: 'It is on.' };
const VALUES = { room: 'hall', level: 2, on: true };
const CALLED = '{"room": "hall", "level": 2, "on": true}';
const TOOL_JSON =
  '{"type": "function", "function": {"name": "light", "description": "Turns a lamp on.", "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}}}';

/** As Python's str() has it. */
const TOOL_PYTHON = TOOL_JSON.replaceAll('"', "'");

const template = (parts: readonly string[], ends: readonly string[]) =>
  new ChatTemplate(parts.join(''), { specials: { bos_token: '<bos>' }, ends });

/** The texts of documents, with what is learnt in brackets. */
function marked(chat: ChatTemplate, messages: Parameters<ChatTemplate['render']>[0]): string[] {
  return chat
    .documents({ messages, values: { tools: TOOLS } })
    .map((parts) => parts.map((part) => (part.isAnswer ? `[${part.text}]` : part.text)).join(''));
}

/** The calls of message 2 as the format of its family reads them. */
function readBack(chat: ChatTemplate, family: string, ...given: readonly object[]) {
  const messages = [ASKED, call(...given)];
  const { asked, answer } = chat.question({ messages, values: { tools: TOOLS } }, 1);
  const format = TOOL_FORMATS.find(({ read }) => read(answer).length > 0)!;
  expect(format.name).toContain(family);
  return { asked, calls: format.read(answer).map(({ name, arguments: own }) => [name, own]) };
}

describe('Llama 3.1', () => {
  // Tools stand before the first request, a call is JSON with "parameters", one at a time, and a
  // result that is a text is quoted, since texts are iterable.
  const chat = template(
    [
      "{{- bos_token }}{%- if tools is not none and tools is defined %}{%- set first = messages[0]['content'] | trim %}",
      "{%- set messages = messages[1:] %}{{- '<|start_header_id|>user<|end_header_id|>\n\nCall one of:\n\n' }}",
      "{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}{{- first + '<|eot_id|>' }}{%- endif %}",
      "{%- for m in messages %}{%- if not (m.role == 'ipython' or m.role == 'tool' or 'tool_calls' in m) %}",
      "{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}",
      "{%- elif 'tool_calls' in m %}{%- if not m.tool_calls | length == 1 %}{{- raise_exception('one call at a time') }}{%- endif %}",
      '{%- set c = m.tool_calls[0].function %}{{- \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + c.name + \'", "parameters": \' }}',
      "{{- c.arguments | tojson }}{{- '}<|eot_id|>' }}{%- else %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}",
      '{%- if m.content is mapping or m.content is iterable %}{{- m.content | tojson }}{%- else %}{{- m.content }}{%- endif %}',
      "{{- '<|eot_id|>' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}",
    ],
    ['<|eot_id|>', '<|eom_id|>'],
  );
  const tools = `{
    "type": "function",
    "function": {
        "name": "light",
        "description": "Turns a lamp on.",
        "parameters": {
            "type": "object",
            "properties": {
                "room": {
                    "type": "string"
                }
            },
            "required": [
                "room"
            ]
        }
    }
}`;
  const before = `<bos><|start_header_id|>user<|end_header_id|>\n\nCall one of:\n\n${tools}\n\nOn, please.<|eot_id|>`;

  it('writes a call, its result and the answer', () => {
    expect(marked(chat, [ASKED, call(VALUES), DONE, SAID])).toEqual([
      `${before}<|start_header_id|>assistant<|end_header_id|>\n\n[{"name": "light", "parameters": ${CALLED}}<|eot_id|>]` +
        '<|start_header_id|>ipython<|end_header_id|>\n\n"lit"<|eot_id|>' +
        '<|start_header_id|>assistant<|end_header_id|>\n\n[It is on.<|eot_id|>]',
    ]);
    expect(readBack(chat, 'Llama 3.1', VALUES)).toEqual({
      asked: `${before}<|start_header_id|>assistant<|end_header_id|>\n\n`,
      calls: [['light', VALUES]],
    });
  });

  it('refuses two calls at once', () => {
    expect(() => marked(chat, [ASKED, call(VALUES, VALUES), DONE])).toThrow(
      /template refuses the conversation \(one call at a time\)/,
    );
  });
});

describe('Qwen 3', () => {
  // Thinking stands before the last answer, also where there is none; results are a turn of the
  // user, several of them together.
  const chat = template(
    [
      "{%- if tools %}{{- '<|im_start|>system\n<tools>' }}{%- for t in tools %}{{- '\n' }}{{- t | tojson }}{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- endif %}",
      "{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}{%- if m.role == 'user' %}",
      "{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}",
      "{%- if loop.last %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- content.lstrip('\n') }}{%- for c in m.tool_calls or [] %}",
      "{%- if (loop.first and content) or (not loop.first) %}{{- '\n' }}{%- endif %}{%- if c.function %}{%- set c = c.function %}{%- endif %}",
      '{{- \'<tool_call>\n{"name": "\' }}{{- c.name }}{{- \'", "arguments": \' }}{%- if c.arguments is string %}{{- c.arguments }}{%- else %}{{- c.arguments | tojson }}{%- endif %}',
      "{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- elif m.role == 'tool' %}",
      "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}",
      "{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}",
      "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}{%- endfor %}",
      "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
    ],
    ['<|im_end|>'],
  );
  const before = `<|im_start|>system\n<tools>\n${TOOL_JSON}\n</tools><|im_end|>\n<|im_start|>user\nOn, please.<|im_end|>\n<|im_start|>assistant\n`;
  const one = `<tool_call>\n{"name": "light", "arguments": ${CALLED}}\n</tool_call>`;
  const two = '<tool_call>\n{"name": "light", "arguments": {}}\n</tool_call>';

  it('writes two calls, their results and the answer', () => {
    expect(marked(chat, [ASKED, call(VALUES, {}), DONE, DONE, SAID])).toEqual([
      `${before}[<think>\n\n</think>\n\n${one}\n${two}<|im_end|>]`,
      `${before}${one}\n${two}<|im_end|>\n<|im_start|>user\n<tool_response>\nlit\n</tool_response>\n<tool_response>\nlit\n</tool_response><|im_end|>\n` +
        '<|im_start|>assistant\n[<think>\n\n</think>\n\nIt is on.<|im_end|>]',
    ]);
    expect(readBack(chat, 'Qwen 3', VALUES, {})).toEqual({
      asked: before,
      calls: [
        ['light', VALUES],
        ['light', {}],
      ],
    });
  });
});

describe('SmolLM3', () => {
  // It has `xml_tools`, written as Python does, and no `tools`; it takes calls as text. Data need
  // know of neither.
  const chat = template(
    [
      "{{- '<|im_start|>system\n' }}{%- if xml_tools %}{%- for t in xml_tools %}{{- (t | string) + '\n' }}{%- endfor %}",
      "{{- 'Call by <tool_call>\n{json}\n</tool_call>' }}{%- endif %}{{- '<|im_end|>\n' }}{%- for m in messages %}",
      "{%- set content = m.content if m.content is string else '' %}{%- if m.role == 'assistant' %}",
      "{{- '<|im_start|>assistant\n<think>\n\n</think>\n' + content.lstrip('\n') + '<|im_end|>\n' }}",
      "{%- else %}{{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}",
      "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n\n</think>\n' }}{%- endif %}",
    ],
    ['<|im_end|>'],
  );
  const before = `<|im_start|>system\n${TOOL_PYTHON}\nCall by <tool_call>\n{json}\n</tool_call><|im_end|>\n<|im_start|>user\nOn, please.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n`;
  const written = `<tool_call>\n{"name": "light", "arguments": ${CALLED}}\n</tool_call>`;

  it('gets tools and calls in its own words', () => {
    expect(marked(chat, [ASKED, { ...call(VALUES), content: 'So:' }, DONE, SAID])).toEqual([
      `${before}[So:\n${written}<|im_end|>]\n<|im_start|>user\nlit<|im_end|>\n` +
        '<|im_start|>assistant\n<think>\n\n</think>\n[It is on.<|im_end|>]',
    ]);
    expect(readBack(chat, 'SmolLM3', VALUES, {})).toEqual({
      asked: before,
      calls: [
        ['light', VALUES],
        ['light', {}],
      ],
    });
    const { values } = new Briefing(chat, { system: undefined, tools: undefined }, TOOLS);
    expect(chat.render([ASKED], { asks: true, values })).toBe(before);
  });
});

describe('FunctionGemma', () => {
  // Values are JSON without quotes, in the order of their names; texts stand between <escape>. An
  // answer that calls ends where its result would begin, and the next answer is in the same turn.
  const chat = template(
    [
      "{%- macro value(v) -%}{%- if v is string -%}{{- '<escape>' + v + '<escape>' -}}{%- elif v is boolean -%}{{- 'true' if v else 'false' -}}",
      "{%- elif v is mapping -%}{{- '{' -}}{%- for key, inner in v | dictsort -%}{{- key + ':' + value(inner) -}}{%- if not loop.last -%},{%- endif -%}{%- endfor -%}{{- '}' -}}",
      '{%- else -%}{{- v -}}{%- endif -%}{%- endmacro -%}',
      "{{- bos_token -}}{%- set ns = namespace(prev=none) -%}{%- if tools -%}{{- '<start_of_turn>developer\n' -}}{%- for t in tools -%}",
      "{{- '<start_function_declaration>declaration:' + t.function.name + '{description:' + value(t.function.description) + ',parameters:' + value(t.function.parameters.properties) + '}<end_function_declaration>' -}}",
      "{%- endfor -%}{{- '<end_of_turn>\n' -}}{%- endif -%}{%- for m in messages -%}{%- if m.role == 'tool' -%}",
      "{{- '<start_function_response>response:' + m.name + '{value:' + value(m.content) + '}<end_function_response>' -}}{%- set ns.prev = 'response' -%}",
      "{%- else -%}{%- if ns.prev != 'response' -%}{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' -}}{%- endif -%}",
      '{%- set ns.prev = none -%}{%- if m.content -%}{{- m.content | trim -}}{%- endif -%}{%- if m.tool_calls -%}{%- for c in m.tool_calls -%}',
      "{{- '<start_function_call>call:' + c.function.name + value(c.function.arguments) + '<end_function_call>' -}}{%- endfor -%}",
      "{%- if loop.last -%}{{- '<start_function_response>' -}}{%- endif -%}{%- set ns.prev = 'call' -%}{%- else -%}{{- '<end_of_turn>\n' -}}{%- endif -%}{%- endif -%}{%- endfor -%}",
      "{%- if add_generation_prompt and ns.prev != 'response' -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}",
    ],
    ['<end_of_turn>', '<start_function_response>'],
  );
  const before =
    '<bos><start_of_turn>developer\n<start_function_declaration>declaration:light{description:<escape>Turns a lamp on.<escape>,parameters:{room:{type:<escape>string<escape>}}}<end_function_declaration><end_of_turn>\n' +
    '<start_of_turn>user\nOn, please.<end_of_turn>\n<start_of_turn>model\n';
  const one =
    '<start_function_call>call:light{level:2,on:true,room:<escape>hall<escape>}<end_function_call>';

  it('writes a call, its result and the answer in one turn', () => {
    expect(marked(chat, [ASKED, call(VALUES), DONE, SAID])).toEqual([
      `${before}[${one}<start_function_response>]response:light{value:<escape>lit<escape>}<end_function_response>[It is on.<end_of_turn>]`,
    ]);
    expect(readBack(chat, 'FunctionGemma', VALUES, {})).toEqual({
      asked: before,
      calls: [
        ['light', VALUES],
        ['light', {}],
      ],
    });
  });
});

it('Python writes plain data in its own way', () => {
  const odd = { a: "it's", b: 'say "it\'s"', c: 'one\ntwo \\', d: [true, false, null, 1.5, {}] };
  expect(pythonText(odd)).toBe(
    `{'a': "it's", 'b': 'say "it\\'s"', 'c': 'one\\ntwo \\\\', 'd': [True, False, None, 1.5, {}]}`,
  );
});
