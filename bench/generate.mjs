// What a cache of keys and values saves: a text of so many tokens from a random Llama, each token with what
// the cache holds and with everything run anew. Both say the same. Needs the built packages.
// Usage: node bench/generate.mjs [--tokens 256] [--width 256] [--layers 6] [--vocab 4096] [--threads 1] [--report FILE]

import './relaxed-simd.mjs';
import { parseArgs } from 'node:util';
import { Decoder, generate, KeyValueCache, nextLogits } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const PROMPT = [1, 2, 3, 4, 5, 6, 7, 8];
const WARM_UP_TOKENS = 4; // pools fill, code is compiled

const { values: flags } = parseArgs({
  options: {
    tokens: { type: 'string', default: '256' },
    width: { type: 'string', default: '256' },
    layers: { type: 'string', default: '6' },
    vocab: { type: 'string', default: '4096' },
    threads: { type: 'string', default: '1' },
    report: { type: 'string' },
  },
});
const numTokens = Number(flags.tokens);
const width = Number(flags.width);
const record = await startRecord('bench/generate.mjs');
const backend = await createCpuBackend({ threads: Number(flags.threads) });
const device = new Device(backend);
const capacity = PROMPT.length + numTokens;
const model = new Decoder(device, {
  model_type: 'llama',
  vocab_size: Number(flags.vocab),
  hidden_size: width,
  intermediate_size: 3 * width,
  num_hidden_layers: Number(flags.layers),
  num_attention_heads: width / 32,
  num_key_value_heads: width / 64,
  max_position_embeddings: capacity,
}).eval();
const rows = [];
for (const isHeld of [true, false]) {
  rows.push(await measure(isHeld));
}
const [held, anew] = rows;
if (held.text.join() !== anew.text.join()) {
  throw new Error('The text with a cache is not the one without.');
}
device.dispose();
await backend.dispose();
await endRecord(record);
const times = rows.map(({ isHeld, ms, lastMs }) => ({ isHeld, ms, lastMs }));
Object.assign(record, { flags, times, ratio: anew.ms / held.ms });
publish(flags.report, report(), record);

async function measure(isHeld) {
  const say = async (maxTokens) => {
    const cache = isHeld ? new KeyValueCache(device, { capacity }) : undefined;
    const text = [];
    const ends = [performance.now()];
    const options = { maxTokens, temperature: 1, topK: 40, seed: 1 };
    for await (const token of generate(nextLogits(model, { cache }), PROMPT, options)) {
      text.push(token);
      ends.push(performance.now());
    }
    cache?.dispose();
    return { text, ms: ends.at(-1) - ends[0], lastMs: ends.at(-1) - ends.at(-2) };
  };
  await say(WARM_UP_TOKENS);
  return { isHeld, ...(await say(numTokens)) };
}

function report() {
  const body = rows.map(({ isHeld, ms, lastMs }) => [
    isHeld ? 'with a cache' : 'everything anew',
    (ms / 1000).toFixed(2),
    ((1000 * numTokens) / ms).toFixed(1),
    lastMs.toFixed(1),
  ]);
  return [
    headOf(`Text of ${numTokens} tokens`, record),
    `A Llama of ${flags.layers} layers, width ${width}, ${flags.vocab} words, on the CPU device with ${flags.threads} threads.`,
    table(['', 's', 'tokens/s', 'ms of the last token'], body),
    `A cache makes the text ${(anew.ms / held.ms).toFixed(1)} times as fast.`,
  ].join('\n\n');
}
