// What a cache of keys and values saves. A random Llama writes a text of some length, once with a
// cache and once running everything anew for each token. In f32 both texts are the same. It fails
// where the cache makes it less than five times as fast. It needs the built packages.
// Usage: node bench/generate.mjs [--tokens 256] [--dtypes f32,bf16] [--rounds 3] [--width 256]
//   [--layers 6] [--vocab 4096] [--threads 1] [--report FILE]

import './relaxed-simd.mjs';
import { Decoder, generate, KeyValueCache, nextLogits } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const PROMPT = [1, 2, 3, 4, 5, 6, 7, 8];
const WARM_UP_TOKENS = 4; // until pools are full and the code is compiled
const LEAST_RATIO = 5;

const flags = flagsOf({
  tokens: '256',
  dtypes: 'f32,bf16',
  rounds: '3',
  width: '256',
  layers: '6',
  vocab: '4096',
  threads: '1',
  report: undefined,
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
for (const dtype of flags.dtypes.split(',')) {
  model.to(dtype);
  const [held, anew] = [await measure(true), await measure(false)];
  // In 16 bits, one row and many rows add up in different orders and round differently, so the
  // texts may diverge.
  if (dtype === 'f32' && held.text !== anew.text) {
    throw new Error('The text with a cache is not the one without.');
  }
  rows.push({ dtype, held: held.times, anew: anew.times });
}
device.dispose();
await backend.dispose();
await endRecord(record);
const ratioOf = ({ held, anew }) => anew.text.median / held.text.median;
const times = rows.map((row) => ({ ...row, ratio: ratioOf(row) }));
Object.assign(record, { flags, times });
publish(flags.report, report(), record);
if (times.some(({ ratio }) => ratio < LEAST_RATIO)) {
  console.error(`A cache makes the text less than ${LEAST_RATIO} times as fast.`);
  process.exitCode = 1;
}

/** A text and its times in ms: of the whole text, and of its last token. */
async function measure(isHeld) {
  await say(isHeld, WARM_UP_TOKENS);
  const rounds = [];
  for (let i = 0; i < Number(flags.rounds); i++) {
    rounds.push(await say(isHeld, numTokens));
  }
  const text = timesOf(rounds.map(({ ms }) => ms));
  const last = timesOf(rounds.map(({ lastMs }) => lastMs));
  return { text: rounds[0].tokens.join(), times: { text, last } };
}

async function say(isHeld, maxTokens) {
  const cache = isHeld ? new KeyValueCache(device, { capacity }) : undefined;
  const tokens = [];
  const ends = [performance.now()];
  const options = { maxTokens, temperature: 1, topK: 40, seed: 1 };
  for await (const token of generate(nextLogits(model, { cache }), PROMPT, options)) {
    tokens.push(token);
    ends.push(performance.now());
  }
  cache?.dispose();
  return { tokens, ms: ends.at(-1) - ends[0], lastMs: ends.at(-1) - ends.at(-2) };
}

function report() {
  const body = rows.flatMap(({ dtype, ...row }) =>
    Object.entries({ held: 'with a cache', anew: 'everything anew' }).map(([key, name]) => {
      const { text, last } = row[key];
      return [
        dtype,
        name,
        (text.median / 1000).toFixed(2),
        (text.best / 1000).toFixed(2),
        ((1000 * numTokens) / text.median).toFixed(1),
        last.median.toFixed(1),
      ];
    }),
  );
  const head = ['dtype', '', 's', 'best', 'tokens/s', 'ms of the last token'];
  const ratios = times.map(({ dtype, ratio }) => `${ratio.toFixed(1)} times in ${dtype}`);
  return [
    headOf(`Text of ${numTokens} tokens`, record),
    `A Llama of ${flags.layers} layers, width ${width}, ${flags.vocab} words, on the CPU device with ${flags.threads} threads. Medians of ${flags.rounds} texts, and the best.`,
    table(head, body),
    `A cache makes the text ${ratios.join(' and ')} as fast.`,
  ].join('\n\n');
}
