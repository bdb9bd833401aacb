// What a token of text costs in processor time, with random weights of SmolLM2-135M's shape and a
// cache: our CPU device on one thread, greedy and by the command's defaults, in turns with
// llama.cpp on one thread from our own GGUF in f16, where node-llama-cpp has a build for this
// machine. Processor time is hardly moved by what else runs, as wall time is. The host's share is
// that of the main thread; kernels run on the other one.
// Usage: node bench/token-time.mjs [--tokens 24] [--rounds 5] [--dtypes bf16,f32] [--report FILE]

import './relaxed-simd.mjs';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { modelGguf } from '../packages/gguf/dist/index.js';
import {
  Decoder,
  generate,
  KeyValueCache,
  nextLogits,
  parseModelConfig,
  stateDict,
} from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const PROMPT = [1, 2, 3, 4, 5, 6, 7, 8];
const WARM_UP_TOKENS = 24; // until V8 has compiled the host's part
/** Draws as `shardweave generate` does where its flags are left out. */
const DRAWS = { greedy: { temperature: 0 }, 'by the defaults': { temperature: 0.8 } };

const { values: flags } = parseArgs({
  options: {
    tokens: { type: 'string', default: '24' },
    rounds: { type: 'string', default: '5' },
    dtypes: { type: 'string', default: 'bf16,f32' },
    report: { type: 'string' },
  },
});
const numTokens = Number(flags.tokens);
const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');
const config = read('shapes/smollm2-135m/config.json');
const record = await startRecord('bench/token-time.mjs');
const backend = await createCpuBackend({ threads: 1 });
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
    ['all', 'host'].map((part) => [part, timesOf(samples[i].map((sample) => sample[part]))]),
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
  for (const dtype of flags.dtypes.split(',')) {
    const model = new Decoder(device, parseModelConfig(config)).eval();
    if (found.length === 0) {
      await writeGguf(model);
    }
    model.to(dtype);
    for (const [draw, options] of Object.entries(DRAWS)) {
      found.push({ engine: `shardweave ${dtype}`, draw, say: await ours(model, options) });
    }
  }
  const rival = await llamaCpp();
  return rival === undefined ? found : [...found, rival];
}

async function ours(model, options) {
  const say = async (maxTokens) => {
    const cache = new KeyValueCache(device, { capacity: PROMPT.length + maxTokens + 1 });
    const drawn = { ...options, maxTokens: maxTokens + 1, seed: 1 };
    const ms = await timeOfTokens(generate(nextLogits(model, { cache }), PROMPT, drawn));
    cache.dispose();
    return ms;
  };
  await say(WARM_UP_TOKENS);
  return say;
}

async function writeGguf(model) {
  const texts = new Map([
    ['config.json', config],
    ['tokenizer.json', read('../tooling/tokenizer/tokenizer.json')],
    ['tokenizer_config.json', read('../tooling/tokenizer/tokenizer_config.json')],
  ]);
  const gguf = modelGguf({ texts, state: await stateDict(model) }, { type: 'f16', name: 'bench' });
  const out = await open(join(folder, 'model.gguf'), 'w');
  for await (const piece of gguf.pieces()) {
    await out.writeFile(piece);
  }
  await out.close();
}

/** The rival; undefined where it has no build for this machine. */
async function llamaCpp() {
  const require = createRequire(new URL('../packages/gguf/package.json', import.meta.url));
  const { getLlama } = await import(require.resolve('node-llama-cpp'));
  const fixed = { gpu: false, build: 'never', skipDownload: true, progressLogs: false };
  const llama = await getLlama({ ...fixed, maxThreads: 1, logLevel: 'error' }).catch(() => {});
  if (llama === undefined) {
    return undefined;
  }
  const model = await llama.loadModel({ modelPath: join(folder, 'model.gguf') });
  const contextSize = PROMPT.length + Math.max(numTokens, WARM_UP_TOKENS) + 8;
  const context = await model.createContext({ contextSize, threads: 1 });
  const say = async (maxTokens) => {
    const sequence = context.getSequence();
    const ms = await timeOfTokens(sequence.evaluate(PROMPT, { temperature: 0 }), maxTokens + 1);
    sequence.dispose();
    return ms;
  };
  await say(WARM_UP_TOKENS);
  return { engine: 'llama.cpp f16', draw: 'greedy', say, dispose: () => llama.dispose() };
}

/** The ms of a token but for the first one, which pays for the prompt. */
async function timeOfTokens(text, most = Number.POSITIVE_INFINITY) {
  let count = 0;
  let start;
  for await (const _token of text) {
    start ??= { process: process.cpuUsage(), host: hostMs() };
    count += 1;
    if (count === most) {
      break;
    }
  }
  const { user, system } = process.cpuUsage(start.process);
  const host = (hostMs() - start.host) / (count - 1);
  return { all: (user + system) / 1000 / (count - 1), host };
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
  const rival = times.find(({ engine }) => engine.startsWith('llama.cpp'));
  const body = times.map(({ engine, draw, all, host }) => [
    engine,
    draw,
    all.median.toFixed(1),
    all.best.toFixed(1),
    engine === rival?.engine ? '' : host.median.toFixed(2),
    rival === undefined ? '' : (all.median / rival.all.median).toFixed(2),
  ]);
  const head = ['', 'draws', 'ms a token', 'best', 'of them on the host', 'times llama.cpp'];
  return [
    headOf('Processor time of a token', record),
    `Random weights of SmolLM2-135M's shape, one thread, ${numTokens} tokens after ${PROMPT.length}. Medians of ${flags.rounds} texts in turns, and the best.`,
    table(head, body),
  ].join('\n\n');
}
