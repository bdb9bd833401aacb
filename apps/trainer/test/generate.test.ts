// The command `generate` with small random models is compared with calls of the same model without
// a cache.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  applyLora,
  type GenerateOptions,
  generate,
  type LanguageModel,
  loadStateDict,
  makeModel,
  nextLogits,
  parseModelConfig,
  stateDict,
  type WeightsDType,
  writeSafetensors,
} from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SignalError } from '../src/errors.js';
import { writeDirectory } from '../src/files/write-file.js';
import { Interrupt } from '../src/interrupt.js';
import { adapterFiles } from '../src/model/adapter-directory.js';
import { buildCommand } from './support/build-command.js';
import {
  LETTERS,
  LETTERS_CHAT,
  type LettersOptions,
  lettersDirectory,
} from './support/letters-tokenizer.js';
import { runCli } from './support/run-cli.js';
import { writeModel } from './support/write-model.js';

const LLAMA = {
  model_type: 'llama',
  vocab_size: LETTERS.vocabSize,
  hidden_size: 16,
  intermediate_size: 24,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 96,
  initializer_range: 0.5,
  rms_norm_eps: 1e-5,
  hidden_act: 'silu',
  tie_word_embeddings: false,
};
const GPT2 = {
  ...{ model_type: 'gpt2', vocab_size: LETTERS.vocabSize, n_positions: 96, n_embd: 16 },
  ...{ n_layer: 2, n_head: 2, initializer_range: 0.5 },
};
const PROMPT = 'It was';

const backend = await createCpuBackend({ threads: 1 });
const directories: string[] = [];
afterAll(async () => {
  await backend.dispose();
  for (const directory of directories) {
    rmSync(directory, { recursive: true });
  }
});

/** Makes a directory with a random model, and returns that model too. */
async function makeDirectory({
  dtype = 'f32',
  ...options
}: LettersOptions & { readonly dtype?: WeightsDType } = {}) {
  const directory = lettersDirectory(options);
  directories.push(directory);
  const config = parseModelConfig(JSON.stringify(options.config ?? LLAMA));
  const device = new Device(backend);
  const model = makeModel(device, config, { seed: 2 }).eval() as LanguageModel;
  await writeModel(directory, { config, state: await stateDict(model) }, { dtype });
  model.to(dtype);
  return { directory, config, device, model };
}

const run = (args: readonly string[], options?: { readonly input: string }) =>
  runCli(['generate', ...args, '--device', 'cpu', '--threads', '1'], options);

async function tokensOf(
  model: LanguageModel,
  prompt: readonly number[],
  options: Partial<GenerateOptions> = {},
): Promise<number[]> {
  const found: number[] = [];
  const stop = [LETTERS.begin.id, LETTERS.end.id];
  const all = { maxTokens: 12, temperature: 0, stop, ...options };
  for await (const token of generate(nextLogits(model), prompt, all)) {
    found.push(token);
  }
  return found;
}

const encode = (text: string) => [...new TextEncoder().encode(text)];
const decode = (tokens: readonly number[]) =>
  new TextDecoder().decode(Uint8Array.from(tokens.filter((token) => token < 256)));
const GREEDY = ['--max-tokens', '12', '--temperature', '0'];

describe('generate', () => {
  it('continues a prompt; --quiet prints what follows it alone', async () => {
    const { directory, model } = await makeDirectory();
    const text = decode(await tokensOf(model, encode(PROMPT)));
    const flags = ['--model', directory, '--prompt', PROMPT, ...GREEDY];
    const quiet = await run([...flags, '--quiet']);
    expect(quiet).toEqual({ code: 0, out: text, err: '' });
    const { code, out, err } = await run(flags);
    expect({ code, err }).toEqual({ code: 0, err: '' });
    expect(out.startsWith(`${PROMPT}${text}\n`)).toBe(true);
    expect(out.slice(PROMPT.length + text.length)).toMatch(/^\n12 tokens, [\d.]+ tokens\/s\n$/);
  });

  it('begins a conversation with --system and --tools', async () => {
    const template = `{% if tools %}{{ 't:' + tools[0].name + '<end>' }}{% endif %}${LETTERS_CHAT}`;
    const { directory } = await makeDirectory({ template });
    const tools = join(directory, 'tools.json');
    writeFileSync(tools, '[{ "name": "light" }]');
    const chat = ['--model', directory, ...GREEDY, '--quiet', '--chat', '--system', 'Be brief.'];
    const text = (rendered: string) =>
      run(['--model', directory, ...GREEDY, '--quiet', '--prompt', rendered]);
    const said = await run([...chat, '--tools', tools], { input: 'hi\n' });
    const prompt = 't:light<end>s:Be brief.<end>\nu:hi<end>\na:';
    expect(said).toEqual({ code: 0, out: `${(await text(prompt)).out}\n`, err: '' });
    const bare = await run(chat, { input: 'hi\n' });
    expect(bare.out).toBe(`${(await text(prompt.slice(12))).out}\n`);
    expect(bare.out).not.toBe(said.out);
  });

  it('refuses what its template does not write, and tools that are none', async () => {
    const { directory } = await makeDirectory({ template: "{{ 'a:' + messages[0].content }}" });
    const file = (text: string) => {
      writeFileSync(join(directory, 'tools.json'), text);
      return ['--tools', join(directory, 'tools.json')];
    };
    const refused = async (flags: readonly string[]) => {
      const { code, err } = await run(['--model', directory, ...flags], { input: 'hi\n' });
      expect(code).toBe(2);
      return err;
    };
    const chat = (flags: readonly string[]) => refused(['--chat', ...flags]);
    expect(await chat(file('[{}]'))).toMatch(/--tools .*: .*template writes nothing of tools/);
    expect(await chat(file('[{'))).toMatch(/--tools: .*tools\.json can't be read \(/);
    expect(await chat(file('[]'))).toMatch(/holds no list of tools/);
    expect(await chat(['--tools', '/nowhere'])).toMatch(/--tools: \/nowhere can't be read \(/);
    expect(await refused(['--prompt', 'x', '--system', 's'])).toMatch(/--system is for --chat/);
    const silent = await makeDirectory({ template: "{{ messages[-1].content + 'a:' }}" });
    const system = await run(['--model', silent.directory, '--chat', '--system', 'Be brief.']);
    expect(system.err).toMatch(/--system: .*template writes nothing of a system message/);
  });

  it('draws by its flags, equal texts for equal seeds', async () => {
    const { directory, model } = await makeDirectory();
    const rules = { temperature: 1.5, topK: 50, topP: 0.9, minP: 0.05, repetitionPenalty: 1.3 };
    const flags = (seed: number) => [
      ...['--model', directory, '--prompt', PROMPT, '--max-tokens', '12', '--quiet'],
      ...['--temperature', '1.5', '--top-k', '50', '--top-p', '0.9', '--min-p', '0.05'],
      ...['--seed', String(seed), '--repetition-penalty', '1.3'],
    ];
    const drawn = await tokensOf(model, encode(PROMPT), { ...rules, seed: 7 });
    const first = await run(flags(7));
    expect(first.out).toBe(decode(drawn));
    expect((await run(flags(8))).out).not.toBe(first.out);
  });

  it('starts at the begin token without a prompt, and puts it before one where documents have it', async () => {
    const { directory, model } = await makeDirectory({ addsBegin: true });
    const flags = ['--model', directory, '--quiet', ...GREEDY];
    const { begin } = LETTERS;
    const alone = decode(await tokensOf(model, [begin.id]));
    expect((await run(flags)).out).toBe(alone);
    const before = decode(await tokensOf(model, [begin.id, ...encode(PROMPT)]));
    expect(before).not.toBe(decode(await tokensOf(model, encode(PROMPT))));
    expect((await run([...flags, '--prompt', PROMPT])).out).toBe(before);
  });

  it('ends at an end token, at the begin token, and before a text of --stop', async () => {
    const plain = await makeDirectory();
    const tokens = await tokensOf(plain.model, encode(PROMPT));
    const last = tokens[4]!;
    const text = decode(tokens.slice(0, tokens.indexOf(last)));
    const flags = ['--prompt', PROMPT, '--quiet', ...GREEDY];
    for (const ids of [{ eos_token_id: [2, last] }, { bos_token_id: last, eos_token_id: 2 }]) {
      const { directory } = await makeDirectory({
        generationConfig: ids,
        tokenizerConfig: {},
      });
      expect((await run(['--model', directory, ...flags])).out).toBe(text);
    }
    const whole = decode(tokens);
    const stop = whole.slice(3, 5);
    const stopped = await run([
      ...['--model', plain.directory, ...flags, '--stop', 'not there'],
      ...['--stop', stop],
    ]);
    expect(stopped.out).toBe(whole.slice(0, whole.indexOf(stop)));
  });

  it('answers each line of a conversation by the template, and knows what was said', async () => {
    const { directory, model } = await makeDirectory();
    // The template writes `u:Hi<end>\na:`; see LETTERS_CHAT.
    const { end } = LETTERS;
    const turn = (role: string, content: readonly number[]) => [
      ...encode(`${role}:`),
      ...content,
      end.id,
      ...encode('\n'),
    ];
    const asks = encode('a:');
    const first = turn('u', encode('Hi'));
    const said = decode(await tokensOf(model, [...first, ...asks]));
    const second = [...first, ...turn('a', encode(said)), ...turn('u', encode('Why?'))];
    const again = decode(await tokensOf(model, [...second, ...asks]));
    const flags = ['--model', directory, '--chat', '--quiet', ...GREEDY];
    const { code, out, err } = await run(flags, { input: 'Hi\n\nWhy?\n' });
    expect({ code, out, err }).toEqual({ code: 0, out: `${said}\n${again}\n`, err: '' });
  });

  it('says on a terminal how a conversation ends, and that Ctrl-C has ended it', async () => {
    const { directory } = await makeDirectory();
    const line = ['generate', '--model', directory, '--chat', '--device', 'cpu', ...GREEDY];
    const done = await runCli(line, { isTTY: true, input: '\n' });
    expect([done.code, done.err]).toEqual([0, 'Ctrl-D ends the conversation.\n> > \n']);
    const interrupt = new Interrupt({ exit: () => {} });
    const onErr = (text: string) => {
      if (text === '> ') {
        queueMicrotask(() => interrupt.ask(new SignalError('SIGINT')));
      }
    };
    const ended = await runCli(line, { isTTY: true, input: 'Hi\n', interrupt, onErr });
    expect([ended.code, ended.err]).toEqual([
      130,
      'Ctrl-D ends the conversation.\n> \nerror: The conversation was ended by Ctrl-C.\n',
    ]);
  });

  it('adds the adapters of a directory', async () => {
    const { directory, device, config, model } = await makeDirectory();
    const adapted = makeModel(device, config, { seed: 2 }).eval() as LanguageModel;
    const lora = applyLora(adapted, { rank: 2, alpha: 8, seed: 3 });
    const state = await stateDict(adapted);
    for (const [name, { data }] of state) {
      if (name.includes('lora_B')) {
        const factor = new Float32Array(data.buffer, data.byteOffset, data.byteLength / 4);
        factor.set(factor.map((_, i) => ((i * 7) % 11) / 5 - 1));
      }
    }
    await loadStateDict(adapted, state);
    const adapter = newFolder();
    directories.push(adapter);
    const files = adapterFiles(state, { config: lora, base: directory, fanInFanOut: false });
    await writeDirectory(adapter, files);
    const text = decode(await tokensOf(adapted, encode(PROMPT)));
    expect(text).not.toBe(decode(await tokensOf(model, encode(PROMPT))));
    const flags = ['--model', directory, '--prompt', PROMPT, '--quiet', ...GREEDY];
    for (const strategy of ['single', 'offload']) {
      const { out } = await run([...flags, '--adapter', adapter, '--strategy', strategy]);
      expect(out).toBe(text);
    }
    const lacking = new Map(await stateDict(model));
    lacking.delete('model.layers.1.input_layernorm.weight');
    await writeModel(directory, { config, state: lacking });
    const { code, err } = await run([...flags, '--adapter', adapter]);
    expect(code).toBe(2);
    expect(err).toMatch(
      /base model. Missing: model.layers.1.input_layernorm.weight. Unexpected: none/,
    );
  });

  it.each([LLAMA, GPT2])(
    'says the same at rest off its device, within a budget: $model_type',
    async (config) => {
      const { directory, model } = await makeDirectory({ config });
      const text = decode(await tokensOf(model, encode(PROMPT)));
      const flags = ['--model', directory, '--prompt', PROMPT, '--quiet', ...GREEDY];
      const offload = [...flags, '--strategy', 'offload'];
      expect((await run([...offload, '--device-budget', '100000'])).out).toBe(text);
      const small = await run([...offload, '--device-budget', '10000']);
      expect(small.code).toBe(2);
      expect(small.err).toMatch(/^error: --device-budget: .*budget/);
    },
  );

  it.each([LLAMA, GPT2])(
    'holds and computes in the 16 bits of the file, in f32 on request: $model_type',
    async (config) => {
      const { directory, model } = await makeDirectory({ config, dtype: 'bf16' });
      const drawn = { temperature: 1.2, seed: 4, maxTokens: 60 };
      const text = decode(await tokensOf(model, encode(PROMPT), drawn));
      model.to('f32'); // The values are the same, but products are in f32.
      const wide = decode(await tokensOf(model, encode(PROMPT), drawn));
      expect(wide).not.toBe(text);
      const flags = ['--model', directory, '--prompt', PROMPT, '--quiet'];
      flags.push('--temperature', '1.2', '--max-tokens', '60', '--seed', '4');
      const offload = [...flags, '--strategy', 'offload'];
      const neededBytes = async (...how: string[]) => {
        const { err } = await run([...offload, '--device-budget', '1000', ...how]);
        return Number(/budget of at least (\d+) bytes/.exec(err)?.[1]);
      };
      expect((await run(flags)).out).toBe(text);
      expect((await run([...flags, '--precision', 'bf16'])).out).toBe(text);
      expect((await run(offload)).out).toBe(text);
      expect((await run([...flags, '--precision', 'fp32'])).out).toBe(wide);
      const wideBytes = await neededBytes('--precision', 'fp32');
      expect((await neededBytes()) / wideBytes).toBeLessThan(0.6);
    },
  );

  it('computes in f32 where the weights of a file are not all of one 16-bit dtype', async () => {
    const { directory, model } = await makeDirectory({ dtype: 'bf16' });
    const state = new Map(await stateDict(model));
    const norm = state.get('model.norm.weight')!;
    // This is not a bf16.
    const data = new Uint8Array(new Uint16Array(norm.shape[0]!).fill(0x3c01).buffer);
    state.set('model.norm.weight', { ...norm, dtype: 'f16', data });
    writeFileSync(join(directory, 'model.safetensors'), writeSafetensors(state));
    const drawn = ['--temperature', '1.2', '--max-tokens', '60', '--seed', '2', '--quiet'];
    const flags = ['--model', directory, '--prompt', PROMPT, ...drawn];
    const { out } = await run(flags);
    expect(out).toBe((await run([...flags, '--precision', 'fp32'])).out);
    expect(out).not.toBe((await run([...flags, '--precision', 'bf16'])).out);
  });

  it.each(['0', '1.2'])('a damaged model is told, at temperature %s', async (temperature) => {
    const { directory, model } = await makeDirectory({});
    const state = new Map(await stateDict(model));
    const norm = state.get('model.norm.weight')!;
    const data = new Uint8Array(new Float32Array(norm.shape[0]!).fill(Number.NaN).buffer);
    state.set('model.norm.weight', { ...norm, data });
    writeFileSync(join(directory, 'model.safetensors'), writeSafetensors(state));
    const flags = ['--model', directory, '--prompt', PROMPT, '--temperature', temperature];
    const { code, err } = await run(flags);
    expect(err).toMatch(
      /^error: --model: .* gives NaN for the next token\. Its weights, [^\n]*\n$/,
    );
    expect(code).toBe(2);
  });

  it('computes in f32 over blocks, and rounds a token to 8 bits unless it is told how', async () => {
    const config = { ...LLAMA, hidden_size: 64, intermediate_size: 96, initializer_range: 0.2 };
    const { directory } = await makeDirectory({ dtype: 'bf16', config });
    const drawn = ['--temperature', '1.2', '--max-tokens', '60', '--seed', '2', '--quiet'];
    const flags = ['--model', directory, '--prompt', PROMPT, '--base-type', 'q8_0', ...drawn];
    const { out: rounded } = await run(flags);
    const { out: exact } = await run([...flags, '--precision', 'fp32']);
    const { out: narrow } = await run([...flags, '--precision', 'bf16']);
    expect(new Set([rounded, exact, narrow]).size).toBe(3);
    const few = ['--model', directory, '--prompt', PROMPT, '--max-tokens', '1'];
    const told = async (...how: string[]) => (await run([...few, ...how])).err;
    expect(await told('--base-type', 'q8_0')).toBe(
      "Numbers of each token are rounded to 8 bits beside the model's blocks; --precision fp32 rounds none.\n",
    );
    expect(await told('--base-type', 'q8_0', '--precision', 'fp32')).toBe('');
    expect(await told()).toBe('');
  });

  it('prints tokens as they come, and ends clean with Ctrl-C', async () => {
    const { directory } = await makeDirectory({ config: { ...LLAMA, initializer_range: 0.2 } });
    const script = await buildCommand();
    const many = ['--max-tokens', '10000000', '--top-k', '90', '--quiet'];
    const flags = ['--model', directory, '--prompt', PROMPT, ...many];
    const where = ['--device', 'cpu', '--threads', '1'];
    const child = spawn(process.execPath, [script, 'generate', ...flags, ...where]);
    let err = '';
    child.stderr.on('data', (chunk: Buffer) => {
      err += chunk.toString();
    });
    await once(child.stdout, 'data');
    child.kill('SIGINT');
    const [code] = (await once(child, 'exit')) as [number];
    expect({ code, err }).toEqual({ code: 130, err: 'error: The text was ended by Ctrl-C.\n' });
  });

  it('says in a sentence what it cannot do', async () => {
    const { directory } = await makeDirectory();
    const bare = await makeDirectory({ isBare: true, tokenizerConfig: {} });
    const unchatty = await makeDirectory({ tokenizerConfig: { eos_token: '<end>' } });
    const empty = lettersDirectory();
    directories.push(empty);
    const cases: [string[], RegExp][] = [
      [[], /required option '--model <DIR\|ORG\/NAME>' not specified/],
      [['--model', empty], /--model: expected a directory with config.json and weights, or a/],
      [
        ['--model', directory, '--prompt', 'a', '--chat'],
        /--chat and --prompt "a" both say what to answer\. Give one of them\.$/m,
      ],
      [['--model', unchatty.directory, '--chat'], /--chat: .* has no chat template/],
      [['--model', bare.directory], /--prompt is empty, and --tokenizer byte has no token/],
      [['--model', directory, '--device-budget', '9'], /--device-budget is for --strategy offload/],
      [['--model', directory, '--prompt', 'a'.repeat(97)], /97 tokens, and the model has 96 pos/],
      [
        ['--model', directory, '--prompt', 'hello world', '--tokenizer', 'gpt2'],
        /--tokenizer gpt2: the prompt has token 31373, but the model's vocabulary ends at 259/,
      ],
      [['--model', directory, '--adapter', empty], /--adapter: .* holds no adapter_config\.json/],
      [
        ['--model', directory, '--top-k', '0'],
        /^error: --top-k: expected a whole number of at least 1, got "0"\. See --help\./,
      ],
      [
        ['--model', directory, '--top-p', '0'],
        /--top-p: expected a number above 0, at most 1, got "0"/,
      ],
      [
        ['--model', directory, '--min-p', '1.5'],
        /--min-p: expected a number from 0 to 1, got "1\.5"/,
      ],
      [
        ['--model', directory, '--temperature', '-1'],
        /--temperature: expected a number of at least 0, got "-1"/,
      ],
      [['--model', directory, '--stop', ''], /--stop: expected a text, got ""/],
      [['--model', directory, 'more'], /expected flags alone, got "more/],
    ];
    for (const [args, expected] of cases) {
      const { code, out, err } = await run(args);
      expect(err).toMatch(expected);
      expect({ code, out }).toEqual({ code: 2, out: '' });
    }
  });
});
