// This test goes the whole way: a model is trained on chats, fine-tuned by adapters on two ranks
// over sockets, merged and written as GGUF. In llama.cpp it then answers in the format that the
// adapters learned.

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { llamaAnswer, openLlama } from '../../../packages/gguf/test/support/llama-cpp.ts';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { buildCommand } from './support/build-command.js';
import { runCli } from './support/run-cli.js';
import { ROOT, runFlags } from './support/run-flags.js';

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
  const common = '--device cpu --seq 64 --batch 8 --warmup 5';
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
      found[animal] = await llamaAnswer(llama, { path, adapter, prompt, maxTokens: 30 });
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

it('a model goes from a config to an answer in llama.cpp', async () => {
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
    await buildCommand('fine-tune-test'),
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
}, 120_000);
