// Adapters in llama.cpp. The long run goes the whole way: a model is trained on chats, fine-tuned
// by adapters on two ranks over sockets, merged and written as GGUF. In llama.cpp it then answers
// in the format that the adapters learned.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import {
  llamaAnswer,
  llamaLogits,
  openLlama,
  tokenIds,
} from '../../../packages/gguf/test/support/llama-cpp.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { llamaQuantize, noGgml } from '../../../tooling/test-kit/ggml.ts';
import { GEMMA_CONFIG, sentencePieceText } from '../../../tooling/test-kit/sentence-piece.ts';
import { buildCommand } from './support/build-command.js';
import { runCli } from './support/run-cli.js';
import { ROOT, runFlags } from './support/run-flags.js';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const SOUNDS = { cow: 'moo', cat: 'meow', dog: 'woof', owl: 'hoot', pig: 'oink', frog: 'ribbit' };
const QUESTIONS = [
  (animal: string) => `What does the ${animal} say?`,
  (animal: string) => `Tell me the sound of a ${animal}.`,
];
const PLAIN = (animal: string, sound: string) => `The ${animal} says ${sound}.`;
const TAGGED = (animal: string, sound: string) => `[${sound}] ${animal}`;

const folder = newFolder();
const base = join(folder, 'base');

type Answer = (animal: string, sound: string) => string;

/** Returns each question with its answer. */
const chats = (answer: Answer) =>
  Object.entries(SOUNDS).flatMap(([animal, sound]) =>
    QUESTIONS.map((question) => [question(animal), answer(animal, sound)] as const),
  );

/** What the base model has seen of the other format: it is asked for it explicitly. */
const repeats = Object.entries(SOUNDS).map(([animal, sound]) => {
  return [`Say ${TAGGED(animal, sound)}`, TAGGED(animal, sound)] as const;
});

function writeChats(name: string, pairs: readonly (readonly [string, string])[]): string {
  const file = join(folder, name);
  const lines = pairs.map(([question, answer]) => ({
    messages: [
      { role: 'user', content: question },
      { role: 'assistant', content: answer },
    ],
  }));
  writeFileSync(file, lines.map((line) => JSON.stringify(line)).join('\n'));
  return file;
}

async function train(flags: string, entry = ''): Promise<number[]> {
  // A library's products differ by machine, and so would the models that llama.cpp is asked about.
  const common = '--device cpu --products wasm --seq 64 --batch 8 --warmup 5';
  const { steps } = await runFlags(`${common} ${flags}`.split(' '), { entry });
  return steps.map(({ loss }) => loss);
}

/** Returns the answers of a model directory, given by llama.cpp. */
async function answersOf(directory: string): Promise<Record<string, string>> {
  const path = `${directory}.gguf`;
  const args = ['gguf', '--model', directory, '--out', path, '--type', 'f16', '--quiet'];
  expect(await runCli(args)).toEqual({ code: 0, out: '', err: '' });
  return await answersOfFile(path);
}

/** Returns the answers of a GGUF, with or without a file of adapters beside it. */
async function answersOfFile(path: string, adapter?: string): Promise<Record<string, string>> {
  const llama = await openLlama();
  try {
    const found: Record<string, string> = {};
    for (const animal of Object.keys(SOUNDS)) {
      const prompt = `<|im_start|>user\n${QUESTIONS[0]!(animal)}<|im_end|>\n<|im_start|>assistant\n`;
      ({ text: found[animal] } = await llamaAnswer(llama, {
        path,
        adapter,
        prompt,
        maxTokens: 30,
      }));
    }
    return found;
  } finally {
    await llama.dispose();
  }
}

const expected = (answer: Answer) =>
  Object.fromEntries(
    Object.entries(SOUNDS).map(([animal, sound]) => [animal, answer(animal, sound)]),
  );

it.runIf(isLong)(
  'a model goes from a config to an answer in llama.cpp',
  async () => {
    const blank = join(folder, 'blank');
    mkdirSync(blank);
    const config = {
      model_type: 'llama',
      vocab_size: 512,
      hidden_size: 96,
      intermediate_size: 256,
      num_hidden_layers: 2,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      max_position_embeddings: 128,
      tie_word_embeddings: true,
    };
    writeFileSync(join(blank, 'config.json'), JSON.stringify(config));
    for (const name of ['tokenizer.json', 'tokenizer_config.json']) {
      copyFileSync(`${ROOT}tooling/tokenizer/${name}`, join(blank, name));
    }
    const plain = writeChats('plain.jsonl', [...chats(PLAIN), ...repeats]);
    const out = join(folder, 'run');
    await train(`--model ${blank} --data ${plain} --strategy single --steps 90 --out ${out}`);
    mkdirSync(base);
    for (const name of [
      'config.json',
      'model.safetensors',
      'tokenizer.json',
      'tokenizer_config.json',
    ]) {
      copyFileSync(join(out, 'model', name), join(base, name));
    }
    expect(await answersOf(base)).toEqual(expected(PLAIN));

    const tagged = writeChats('tagged.jsonl', chats(TAGGED));
    const tuned = join(folder, 'tuned');
    const losses = await train(
      `--model ${base} --data ${tagged} --strategy fsdp --ranks 2 --transport ws --lora-rank 8 --lr 0.01 --steps 60 --out ${tuned}`,
      await buildCommand(),
    );
    expect(losses.at(-1)!).toBeLessThan(0.1);
    const before = readFileSync(join(base, 'model.safetensors'));
    const merged = join(folder, 'merged');
    const args = [
      'merge',
      '--model',
      base,
      '--adapter',
      join(tuned, 'adapter'),
      '--out',
      merged,
      '--quiet',
    ];
    expect(await runCli(args)).toEqual({ code: 0, out: '', err: '' });
    expect(readFileSync(join(base, 'model.safetensors'))).toEqual(before);
    expect(await answersOf(merged)).toEqual(expected(TAGGED));

    const lora = join(folder, 'mine-lora.gguf');
    const apart = ['gguf', '--model', base, '--adapter', tuned, '--out', lora];
    expect(await runCli(apart)).toMatchObject({
      code: 0,
      out: expect.stringContaining(`${lora}: adapters of 14 layers of a llama, rank 8, f32,`),
    });
    expect(await answersOfFile(`${base}.gguf`, lora)).toEqual(expected(TAGGED));
    const modelfile = readFileSync(join(folder, 'mine-lora.Modelfile'), 'utf8');
    expect(modelfile).toBe(`FROM ${base}\nADAPTER ./mine-lora.gguf\n`);
  },
  120_000,
);

const SHAPE = {
  vocab_size: 512,
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 128,
};

const GEMMA = {
  ...{ vocab_size: 640, num_hidden_layers: 6, head_dim: 64, query_pre_attn_scalar: 64 },
  sliding_window: 16,
};

/** Writes a small tokenizer beside a model's config: Gemma's own kind, or bytes and merges. */
function writeTokenizer(family: string, model: string): void {
  if (family === 'gemma3_text') {
    writeFileSync(join(model, 'tokenizer.json'), sentencePieceText('gemma'));
    // The texts are compared behind prompts without a begin token.
    const config = { ...GEMMA_CONFIG, add_bos_token: false };
    writeFileSync(join(model, 'tokenizer_config.json'), JSON.stringify(config));
    return;
  }
  for (const name of ['tokenizer.json', 'tokenizer_config.json']) {
    copyFileSync(`${ROOT}tooling/tokenizer/${name}`, join(model, name));
  }
}

/** Llamas run always, for a GGUF has their queries and keys in another order. */
const familiesOf = (cells: readonly [string, object, string][]) =>
  isLong ? cells : cells.slice(0, 1);

it.each<[string, object, string]>(
  familiesOf([
    ['llama', { tie_word_embeddings: false }, '--lora-rank 3 --lora-alpha 5'],
    [
      'qwen2',
      { tie_word_embeddings: true },
      '--lora-rank 5 --lora-targets q_proj,v_proj,down_proj',
    ],
    ['qwen3', { tie_word_embeddings: true, head_dim: 32 }, '--lora-rank 8 --lora-alpha 3'],
    ['smollm3', { num_hidden_layers: 4 }, '--lora-rank 3 --lora-alpha 5'],
    ['gemma3_text', GEMMA, '--lora-rank 4'],
  ]),
)(
  'a %s writes 50 tokens with adapters as llama.cpp does with them beside the base',
  async (family, more, flags) => {
    const model = join(folder, family);
    mkdirSync(model);
    const config = { model_type: family, ...SHAPE, ...more };
    writeFileSync(join(model, 'config.json'), JSON.stringify(config));
    writeTokenizer(family, model);
    const data = join(folder, `${family}.txt`);
    writeFileSync(
      data,
      'Call me Ishmael. Some years ago, never mind how long precisely. '.repeat(40),
    );
    const first = join(folder, `${family}-first`);
    await train(
      `--model ${model} --data ${data} --strategy single --steps 12 --lr 0.01 --out ${first}`,
    );
    const base = join(first, 'model');
    const tuned = join(folder, `${family}-tuned`);
    await train(
      `--model ${base} --data ${data} --strategy single --steps 3 --lr 0.05 ${flags} --out ${tuned}`,
    );

    const line = `generate --model ${base} --adapter ${tuned} --device cpu --max-tokens 50 --temperature 0 --quiet`;
    const said = await runCli([...line.split(' '), '--prompt', 'Call me']);
    const adapter = join(folder, `${family}-lora.gguf`);
    await write(`--model ${base} --adapter ${tuned} --out ${adapter}`);
    const llama = await openLlama();
    try {
      const exact = join(folder, `${family}-f32.gguf`);
      await write(`--model ${base} --out ${exact} --type f32`);
      const asked = { path: exact, adapter, prompt: 'Call me', maxTokens: 50 };
      const { text, tokens } = await llamaAnswer(llama, asked);
      expect(said).toMatchObject({ code: 0, out: text });

      const half = join(folder, `${family}-f16.gguf`);
      await write(`--model ${base} --out ${half} --type f16`);
      const logits = await llamaLogits(llama, { path: half, adapter, tokens });
      const likeliest = logits.map((row) => row.indexOf(row.reduce((a, b) => Math.max(a, b))));
      const [written, found] = [tokens.slice(-50), likeliest.slice(-51, -1)];
      expect(tokens.length).toBeGreaterThan(50);
      expect(found.filter((id, i) => id === written[i]).length).toBeGreaterThanOrEqual(48);
    } finally {
      await llama.dispose();
    }
  },
);

async function write(flags: string): Promise<void> {
  const result = await runCli(['gguf', ...flags.split(' '), '--quiet']);
  expect(result).toEqual({ code: 0, out: '', err: '' });
}

// In the short run gguf-model.test.ts trains beside a file's blocks.
it.runIf(isLong && noGgml === undefined).each<[string, object, string]>([
  ['llama', { tie_word_embeddings: false }, '--lora-rank 4'],
  ['qwen3', { tie_word_embeddings: true, head_dim: 64 }, '--lora-rank 8 --lora-alpha 4'],
  ['gemma3_text', GEMMA, '--lora-rank 8 --lora-alpha 4'],
])(
  'a %s that llama.cpp wrote as Q4_K_M writes 50 tokens with adapters as it does with that file',
  async (family, more, flags) => {
    const name = `${family}-wide`;
    const model = join(folder, name);
    mkdirSync(model);
    const wide = { ...SHAPE, hidden_size: 256, intermediate_size: 512 };
    writeFileSync(
      join(model, 'config.json'),
      JSON.stringify({ model_type: family, ...wide, ...more }),
    );
    writeTokenizer(family, model);
    const data = join(folder, `${name}.txt`);
    const line = 'Call me Ishmael. Some years ago, never mind how long precisely. ';
    writeFileSync(data, line.repeat(40));
    const first = join(folder, `${name}-first`);
    const rows = '--seq 32 --batch 4 --strategy single';
    await train(`--model ${model} --data ${data} ${rows} --steps 60 --lr 0.004 --out ${first}`);
    const exact = join(folder, `${name}-f32.gguf`);
    await write(`--model ${join(first, 'model')} --out ${exact} --type f32`);
    const base = join(folder, `${name}-Q4_K_M.gguf`);
    llamaQuantize(exact, { to: base, fileType: 15 });

    const other = join(folder, `${name}-other.txt`);
    const changed = 'Call me Ahab. Some months ago, never mind how soon precisely. ';
    writeFileSync(other, changed.repeat(40));
    const tuned = join(folder, `${name}-tuned`);
    const losses = await train(
      `--model ${base} --data ${other} ${rows} --steps 20 --lr 0.02 ${flags} --out ${tuned}`,
    );
    expect(losses.at(-1)!).toBeLessThan(losses[0]! / 3);
    const adapter = join(folder, `${name}-lora.gguf`);
    await write(`--model ${base} --adapter ${tuned} --out ${adapter}`);
    const generate = `generate --model ${base} --adapter ${tuned} --device cpu --max-tokens 50 --temperature 0 --quiet`;
    const { out } = await runCli([...generate.split(' '), '--prompt', 'Call']);
    const llama = await openLlama();
    try {
      const [ids = []] = await tokenIds(llama, { path: base, texts: [`Call${out}`] });
      const logits = await llamaLogits(llama, { path: base, adapter, tokens: ids });
      const likeliest = logits.map((row) => row.indexOf(row.reduce((a, b) => Math.max(a, b))));
      const [written, found] = [ids.slice(-50), likeliest.slice(-51, -1)];
      expect(ids.length).toBeGreaterThan(50);
      expect(found.filter((id, i) => id === written[i]).length).toBeGreaterThanOrEqual(48);
    } finally {
      await llama.dispose();
    }
  },
);
