// What a token of text costs, with random weights of SmolLM2-135M's shape and a cache: our CPU
// device, greedy and by the command's defaults, with weights in floats or in blocks, in turns with
// llama.cpp from our own GGUF in f16 and in each of these blocks, where node-llama-cpp has a build
// for this machine. Processor time is hardly moved by what else runs; wall time shows what memory
// holds up. The host's share is that of the main thread; with one thread kernels run on another.
// With --prompt more, the prompt has so many tokens and its own line.
// Usage: node bench/token-time.mjs [--tokens 24] [--rounds 5] [--types bf16,f32,q8_0]
//          [--threads 1] [--products wasm] [--prompt 8] [--activations exact] [--report FILE]

import './relaxed-simd.mjs';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { modelGguf } from '../packages/gguf/dist/index.js';
import {
  Decoder,
  generate,
  KeyValueCache,
  nextLogits,
  parseModelConfig,
  quantizeBase,
  stateDict,
} from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const WARM_UP_TOKENS = 24; // until V8 has compiled the host's part
/** Draws as `shardweave generate` does where its flags are left out. */
const DRAWS = { greedy: { temperature: 0 }, 'by the defaults': { temperature: 0.8 } };

const flags = flagsOf({
  tokens: '24',
  rounds: '5',
  types: 'bf16,f32',
  threads: '1',
  products: 'wasm',
  prompt: '8',
  activations: '8-bit',
  report: undefined,
});
const numTokens = Number(flags.tokens);
const threads = Number(flags.threads);
const PROMPT = Array.from({ length: Number(flags.prompt) }, (_, i) => 1 + i);
const types = flags.types.split(',');
const blockTypes = types.filter((type) => type.startsWith('q'));
const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');
const config = read('shapes/smollm2-135m/config.json');
const record = await startRecord('bench/token-time.mjs');
const quantizeActivations = flags.activations !== 'exact';
const backend = await createCpuBackend({ threads, products: flags.products, quantizeActivations });
const device = new Device(backend);
const folder = mkdtempSync(join(tmpdir(), 'shardweave-token-time-'));
const contenders = await prepare();
const samples = contenders.map(() => []);
for (let round = 0; round < Number(flags.rounds); round++) {
  for (const [i, { say }] of contenders.entries()) {
    samples[i].push(await say(numTokens));
  }
}
const times = contenders.map(({ engine, draw }, i) => ({
  engine,
  draw,
  ...Object.fromEntries(
    ['all', 'host', 'wall', 'prompt'].map((part) => [
      part,
      timesOf(samples[i].map((sample) => sample[part])),
    ]),
  ),
}));
for (const { dispose } of contenders) {
  await dispose?.();
}
device.dispose();
await backend.dispose();
rmSync(folder, { recursive: true });
await endRecord(record);
Object.assign(record, { flags, times });
publish(flags.report, report(), record);

/** What takes turns, each with `say`, which returns the ms of processor time of a token. */
async function prepare() {
  const found = [];
  for (const type of types) {
    const model = new Decoder(device, parseModelConfig(config)).eval();
    if (found.length === 0) {
      await writeGgufs(model);
    }
    if (blockTypes.includes(type)) {
      for (const parameter of model.parameters()) {
        parameter.requiresGrad = false;
      }
      await quantizeBase(model, { type });
    } else {
      model.to(type);
    }
    for (const [draw, options] of Object.entries(DRAWS)) {
      found.push({ engine: `shardweave ${type}`, draw, say: await ours(model, options) });
    }
  }
  return [...found, ...(await llamaCpp())];
}

async function ours(model, options) {
  const say = async (maxTokens) => {
    const cache = new KeyValueCache(device, { capacity: PROMPT.length + maxTokens + 1 });
    const drawn = { ...options, maxTokens: maxTokens + 1, seed: 1 };
    const time = await timeOfTokens(generate(nextLogits(model, { cache }), PROMPT, drawn));
    cache.dispose();
    return time;
  };
  await say(WARM_UP_TOKENS);
  return say;
}

async function writeGgufs(model) {
  const texts = new Map([
    ['config.json', config],
    ['tokenizer.json', read('../tooling/tokenizer/tokenizer.json')],
    ['tokenizer_config.json', read('../tooling/tokenizer/tokenizer_config.json')],
  ]);
  for (const type of ['f16', ...blockTypes]) {
    const gguf = modelGguf({ texts, state: await stateDict(model) }, { type, name: 'bench' });
    const out = await open(fileOf(type), 'w');
    for await (const piece of gguf.pieces()) {
      await out.writeFile(piece);
    }
    await out.close();
  }
}

function fileOf(type) {
  return join(folder, `model-${type}.gguf`);
}

/** The rivals; none where llama.cpp has no build for this machine. */
async function llamaCpp() {
  const require = createRequire(new URL('../packages/gguf/package.json', import.meta.url));
  const { getLlama } = await import(require.resolve('node-llama-cpp'));
  const fixed = { gpu: false, build: 'never', skipDownload: true, progressLogs: false };
  const llama = await getLlama({ ...fixed, maxThreads: threads, logLevel: 'error' }).catch(
    () => {},
  );
  if (llama === undefined) {
    return [];
  }
  const rivals = [];
  for (const type of ['f16', ...blockTypes]) {
    rivals.push({ engine: `llama.cpp ${type}`, draw: 'greedy', say: await sayer(llama, type) });
  }
  rivals.at(-1).dispose = () => llama.dispose();
  return rivals;
}

async function sayer(llama, type) {
  const model = await llama.loadModel({ modelPath: fileOf(type) });
  const contextSize = PROMPT.length + Math.max(numTokens, WARM_UP_TOKENS) + 8;
  const context = await model.createContext({ contextSize, threads });
  const say = async (maxTokens) => {
    const sequence = context.getSequence();
    const time = await timeOfTokens(sequence.evaluate(PROMPT, { temperature: 0 }), maxTokens + 1);
    sequence.dispose();
    return time;
  };
  await say(WARM_UP_TOKENS);
  return say;
}

/** The ms of a token but for the first one, and those until the first, which are the prompt's. */
async function timeOfTokens(text, most = Number.POSITIVE_INFINITY) {
  let count = 0;
  let start = now();
  let prompt = 0;
  for await (const _token of text) {
    if (count === 0) {
      prompt = since(start).all;
      start = now();
    }
    count += 1;
    if (count === most) {
      break;
    }
  }
  const { all, host, wall } = since(start);
  const per = (ms) => ms / (count - 1);
  return { all: per(all), host: per(host), wall: per(wall), prompt };
}

function now() {
  return { process: process.cpuUsage(), host: hostMs(), wall: performance.now() };
}

function since(start) {
  const { user, system } = process.cpuUsage(start.process);
  const wall = performance.now() - start.wall;
  return { all: (user + system) / 1000, host: hostMs() - start.host, wall };
}

/** The processor time of the main thread in ms, which Linux alone tells. */
function hostMs() {
  try {
    const [ns] = readFileSync(`/proc/self/task/${process.pid}/schedstat`, 'utf8').split(' ');
    return Number(ns) / 1e6;
  } catch {
    return Number.NaN;
  }
}

function report() {
  const rival = times.find(({ engine }) => engine === 'llama.cpp f16');
  const body = times.map(({ engine, draw, all, host, wall, prompt }) => [
    engine,
    draw,
    all.median.toFixed(1),
    all.best.toFixed(1),
    wall.median.toFixed(1),
    engine.startsWith('llama.cpp') ? '' : host.median.toFixed(2),
    rival === undefined ? '' : (all.median / rival.all.median).toFixed(2),
    prompt.median.toFixed(0),
    rival === undefined ? '' : (prompt.median / rival.prompt.median).toFixed(2),
  ]);
  const head = ['', 'draws', 'ms a token', 'best', 'wall', 'of them on the host'];
  head.push("times llama.cpp's f16", 'ms for the prompt', "times llama.cpp's f16");
  return [
    headOf('Processor time of a token', record),
    `Random weights of SmolLM2-135M's shape, ${threads === 1 ? 'one thread' : `${threads} threads`}, ${numTokens} tokens after ${PROMPT.length}. Processor time but for the column of wall time. Medians of ${flags.rounds} texts in turns, and the best.`,
    table(head, body),
  ].join('\n\n');
}
