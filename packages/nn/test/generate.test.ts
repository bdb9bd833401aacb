// Generated text is the same with a cache as without one, each further token costs little, and the
// cache refuses what it cannot do.

import {
  type DecoderOptions,
  generate,
  KeyValueCache,
  type LanguageModel,
  type ModelConfig,
  makeModel,
  NnConfigError,
  nextLogits,
  resolveDecoderConfig,
  resolveGpt2Config,
} from '@shardweave/nn';
import { type Backend, Device, type KernelCalls, ShapeError } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, describe, expect, it } from 'vitest';
import { expectClose } from './support/support.js';

const VOCAB = 31;
const POSITIONS = 24;
const LLAMA: DecoderOptions = {
  model_type: 'llama',
  vocab_size: VOCAB,
  hidden_size: 12,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 3,
  num_key_value_heads: 1,
  max_position_embeddings: POSITIONS,
  initializer_range: 0.4,
};
const GPT2 = resolveGpt2Config({
  vocab_size: VOCAB,
  n_positions: POSITIONS,
  n_embd: 12,
  n_layer: 2,
  n_head: 3,
  initializer_range: 0.4,
});
const FAMILIES: readonly (readonly [string, ModelConfig])[] = [
  ['llama', resolveDecoderConfig(LLAMA)],
  ['qwen2', resolveDecoderConfig({ ...LLAMA, model_type: 'qwen2', tie_word_embeddings: true })],
  ['qwen3', resolveDecoderConfig({ ...LLAMA, model_type: 'qwen3', head_dim: 6 })],
  ['smollm3', resolveDecoderConfig({ ...LLAMA, model_type: 'smollm3', no_rope_layers: [0, 1] })],
  [
    'gemma3_text',
    resolveDecoderConfig({
      ...LLAMA,
      ...{ model_type: 'gemma3_text', head_dim: 6, sliding_window: 4 },
      tie_word_embeddings: false, // with a tied head its greedy text is one token, again and again
      layer_types: ['sliding_attention', 'full_attention'],
    }),
  ],
  ['gpt2', GPT2],
];
const PROMPT = [7, 3, 19, 4, 11];
const NUM_TOKENS = 40;
/** Two computations of the same logits may differ by this much in f32. */
const TOLERANCE = 1e-5;

const backend = await createCpuBackend({ threads: 1 });
afterAll(() => backend.dispose());

function open(config: ModelConfig, on: Backend = backend) {
  const device = new Device(on);
  const model = makeModel(device, config, { seed: 3 }).eval() as LanguageModel;
  const cache = new KeyValueCache(device, { capacity: POSITIONS });
  return { device, model, cache };
}

async function all(tokens: AsyncIterable<number>): Promise<number[]> {
  const found: number[] = [];
  for await (const token of tokens) {
    found.push(token);
  }
  return found;
}

describe.each(FAMILIES)('%s', (_, config) => {
  it.each([
    ['greedy', { temperature: 0 }],
    ['sampled', { temperature: 0.9, topK: 12, topP: 0.95, minP: 0.01, seed: 5 }],
  ])(
    '%s: says the same with a cache as without, beyond its positions too',
    async (_name, sampling) => {
      const { model, cache } = open(config);
      const options = { ...sampling, maxTokens: NUM_TOKENS, context: POSITIONS };
      const without = await all(generate(nextLogits(model), PROMPT, options));
      const held = await all(generate(nextLogits(model, { cache }), PROMPT, options));
      expect(without).toHaveLength(NUM_TOKENS);
      expect(new Set(without).size).toBeGreaterThan(1);
      expect(held).toEqual(without);
    },
  );

  it('has the same logits behind a prompt at once, token by token, and behind another one', async () => {
    const { model, cache } = open(config);
    const [atOnce, held] = [nextLogits(model), nextLogits(model, { cache })];
    const text = [...PROMPT, 2, 2, 30, 17];
    for (let length = PROMPT.length; length <= text.length; length++) {
      const tokens = text.slice(0, length);
      expectClose(await held(tokens), await atOnce(tokens), TOLERANCE);
      expect(cache.tokens).toEqual(tokens);
    }
    const other = [...text.slice(0, 6), 9, 1];
    expectClose(await held(other), await atOnce(other), TOLERANCE);
    expectClose(await held(other), await atOnce(other), TOLERANCE);
    expect(cache.tokens).toEqual(other);
  });

  it('takes a long prompt in parts: equal logits, in the memory of one part', async () => {
    const text = Array.from({ length: POSITIONS }, (_, i) => (i * 11) % VOCAB);
    const behind = async (chunk?: number) => {
      const counting = countCalls(createReferenceBackend());
      const { device, model, cache } = open(config, counting.backend);
      const before = device.memory().live.total;
      const logits = await nextLogits(model, { cache, ...(chunk && { chunk }) })(text);
      expect(cache.tokens).toEqual(text);
      return { logits, bytes: device.memory().peak.total - before, ...counting.take() };
    };
    const whole = await behind();
    const parts = await behind(5);
    expectClose(parts.logits, whole.logits, TOLERANCE);
    expectClose((await behind(POSITIONS)).logits, whole.logits, 0);
    const most = (await behind(8)).bytes;
    expect(parts.bytes).toBeLessThan(most);
    expect(most).toBeLessThan(whole.bytes);
    // Only the head runs more often: for the last row of each of the five parts.
    expect(parts.products - whole.products).toBe(4 * VOCAB * 12);
  });

  it('uploads for each further token its id and one table for all blocks of a kind', async () => {
    const counting = countCalls(createReferenceBackend());
    const { model, cache } = open(config, counting.backend);
    const logitsAfter = nextLogits(model, { cache });
    await logitsAfter(PROMPT);
    counting.take();
    await logitsAfter([...PROMPT, 8]);
    expect(counting.take().uploads).toBe(config.model_type === 'gemma3_text' ? 3 : 2);
  });

  it.each(['f32', 'bf16', 'f16'] as const)(
    'computes for each further token what the first of them costs, but for attention, in %s',
    async (dtype) => {
      const counting = countCalls(createReferenceBackend());
      const { model, cache } = open(config, counting.backend);
      model.to(dtype);
      counting.take();
      const logitsAfter = nextLogits(model, { cache });
      await logitsAfter(PROMPT);
      const prompt = counting.take();
      const costs: ReturnType<typeof counting.take>[] = [];
      for (let i = 1; i <= 8; i++) {
        await logitsAfter([...PROMPT, ...Array.from({ length: i }, () => 8)]);
        costs.push(counting.take());
      }
      expect(new Set(costs.map(({ calls }) => calls))).toEqual(new Set([costs[0]!.calls]));
      expect(new Set(costs.map(({ products }) => products))).toEqual(new Set([costs[0]!.products]));
      expect(costs.map(({ attended }) => attended)).toEqual(
        [6, 7, 8, 9, 10, 11, 12, 13].map((keys) => 2 * keys),
      );
      // For the prompt, too, the head multiplies only one row.
      const head = VOCAB * 12;
      expect(prompt.products).toBe(PROMPT.length * (costs[0]!.products - head) + head);
    },
  );

  it('holds its keys and values in bytes by formula, and no more with every token', async () => {
    const { device, model, cache } = open(config);
    const before = device.memory().live.total;
    const logitsAfter = nextLogits(model, { cache });
    const live: number[] = [];
    for await (const _token of generate(logitsAfter, PROMPT, { maxTokens: 12, temperature: 0 })) {
      live.push(device.memory().live.total);
    }
    const held = 2 * 2 * POSITIONS * kvWidthOf(config) * 4;
    expect(new Set(live)).toEqual(new Set([before + held]));
    cache.dispose();
    expect(device.memory().live.total).toBe(before);
    model.dispose();
    expect(device.memory().live.total).toBe(0);
  });
});

describe('a model in 16 bits', () => {
  it.each(
    FAMILIES.flatMap(([name, config]) => [
      [name, 'bf16', config] as const,
      [name, 'f16', config] as const,
    ]),
  )('%s in %s says the same with a cache, in 2 bytes a number', async (_, dtype, config) => {
    const { device, model, cache } = open(config, createReferenceBackend());
    model.to(dtype);
    const before = device.memory().live.total;
    const options = { temperature: 0, maxTokens: 8 };
    const without = await all(generate(nextLogits(model), PROMPT, options));
    expect(await all(generate(nextLogits(model, { cache }), PROMPT, options))).toEqual(without);
    const numbers = 2 * 2 * POSITIONS * kvWidthOf(config);
    expect(device.memory().live.total - before).toBe(numbers * 2);
  });

  it('keeps one list of tokens however long the text gets', () => {
    const { cache } = open(GPT2);
    const { tokens } = cache;
    cache.append([1, 2]);
    cache.append([3]);
    cache.truncate(2);
    expect(cache.tokens).toBe(tokens);
    expect(tokens).toEqual([1, 2]);
  });

  it('reads logits of 16 bits as the f32 that the device casts them to, without a copy', async () => {
    const on = createReferenceBackend();
    const { model, cache } = open(GPT2, on);
    model.to('bf16');
    const read = on.read.bind(on);
    const lengths: number[] = [];
    let bytes: Uint8Array | undefined;
    on.read = async (...args) => {
      bytes = await read(...args);
      lengths.push(bytes.byteLength);
      return bytes;
    };
    const logits = await nextLogits(model, { cache })(PROMPT);
    expect(lengths).toEqual([4 * VOCAB]);
    expect(logits.buffer).toBe(bytes!.buffer);
  });

  it('refuses keys of another dtype than those before', async () => {
    const { model, cache } = open(FAMILIES[0]![1], createReferenceBackend());
    const logitsAfter = nextLogits(model, { cache });
    await logitsAfter(PROMPT);
    model.to('bf16');
    await expect(logitsAfter([...PROMPT, 1])).rejects.toThrow(
      'KeyValueCache: expected keys and values [1, 1, 1, 4] in f32, as those before, got [1, 1, 1, 4] in bf16. A cache is of one model.',
    );
  });
});

describe('generate', () => {
  const certain = async (tokens: readonly number[]) => {
    const logits = new Float32Array(10);
    logits[(tokens.at(-1)! + 1) % 10] = 100;
    return logits;
  };

  it('ends before a stop token, and after its most tokens', async () => {
    expect(await all(generate(certain, [3], { maxTokens: 9, stop: [0, 8] }))).toEqual([4, 5, 6, 7]);
    expect(await all(generate(certain, [3], { maxTokens: 2, stop: [8] }))).toEqual([4, 5]);
    expect(await all(generate(certain, [7], { maxTokens: 2, stop: [8] }))).toEqual([]);
  });

  it('shows the model the last half of a text that has outgrown it', async () => {
    const seen: number[][] = [];
    const logitsAfter = (tokens: readonly number[]) => {
      seen.push([...tokens]);
      return certain(tokens);
    };
    await all(generate(logitsAfter, [1, 2, 3], { maxTokens: 4, context: 4 }));
    expect(seen).toEqual([
      [1, 2, 3],
      [1, 2, 3, 4],
      [4, 5],
      [4, 5, 6],
    ]);
    seen.length = 0;
    await all(generate(logitsAfter, [1, 2, 3], { maxTokens: 2, context: 1 }));
    expect(seen).toEqual([[3], [4]]);
  });

  it('makes tokens that it was shown less likely, each once', async () => {
    const drawn = (logits: number[], prompt: number[], repetitionPenalty: number) => {
      const row = Float32Array.from(logits);
      const options = { maxTokens: 4, temperature: 0, repetitionPenalty };
      return all(generate(async () => row, prompt, options));
    };
    expect(await drawn([-4, 2, 1.5, -1], [3], 1)).toEqual([1, 1, 1, 1]);
    expect(await drawn([-4, 2, 1.5, -1], [3], 1.6)).toEqual([1, 2, 1, 1]); // 1.25 beside 0.94
    expect(await drawn([-1, -1.2, -9], [0], 1.5)).toEqual([1, 0, 0, 0]); // -1.5 beside -1.8
  });

  it('draws equal tokens for equal seeds, and others for others', async () => {
    const flat = async () => new Float32Array(1000);
    const drawn = (seed: number) => all(generate(flat, [0], { maxTokens: 50, seed }));
    expect(await drawn(4)).toEqual(await drawn(4));
    expect(await drawn(5)).not.toEqual(await drawn(4));
    const mean = (tokens: number[]) => tokens.reduce((a, b) => a + b, 0) / tokens.length;
    expect(Math.abs(mean(await drawn(4)) - 500)).toBeLessThan(3 * (289 / Math.sqrt(50)));
    expect(new Set(await drawn(4)).size).toBeGreaterThan(40);
  });

  it('refuses options that cannot work', async () => {
    const first = (prompt: number[], options: object) =>
      generate(certain, prompt, { maxTokens: 1, ...options }).next();
    await expect(first([], {})).rejects.toThrow(/a prompt of at least one token/);
    for (const options of [
      { maxTokens: -1 },
      { temperature: -1 },
      { topK: 0 },
      { topP: 0 },
      { topP: 1.1 },
      { minP: -0.1 },
      { minP: 2 },
      { stop: ['a'] },
      { context: 0 },
      { repetitionPenalty: 0 },
      { beams: 3 },
    ]) {
      await expect(first([1], options)).rejects.toThrow(NnConfigError);
    }
  });
});

describe('KeyValueCache', () => {
  const [[, config]] = FAMILIES as [(typeof FAMILIES)[number]];

  it('refuses more tokens than it has room for, several rows, and a graph', async () => {
    const { device, model } = open(config);
    using cache = new KeyValueCache(device, { capacity: 4 });
    const ids = (rows: number, seq: number) =>
      device.tensor(new Int32Array(rows * seq), [rows, seq]);
    const call = (rows: number, seq: number) =>
      device.noGrad(() =>
        device.scope(async () => void (await model.call(ids(rows, seq), { cache }))),
      );
    await expect(call(1, 5)).rejects.toThrow(/at most 4 tokens, its capacity, got 5/);
    await expect(call(2, 3)).rejects.toThrow(/expected one sequence/);
    await expect(
      device.scope(async () => void (await model.call(ids(1, 2), { cache }))),
    ).rejects.toThrow(/inside device.noGrad/);
    expect(() => new KeyValueCache(device, { capacity: 0 })).toThrow(NnConfigError);
    expect(cache.length).toBe(0);
  });

  it('is empty once it was disposed, and may be filled again', async () => {
    const { device, model } = open(config);
    const cache = new KeyValueCache(device, { capacity: 8 });
    const logitsAfter = nextLogits(model, { cache });
    const first = await logitsAfter(PROMPT);
    cache.dispose();
    expect([cache.length, cache.tokens]).toEqual([0, []]);
    expect(await logitsAfter(PROMPT)).toEqual(first);
    expect(cache.tokens).toEqual(PROMPT);
    cache.dispose();
  });

  it('runs nothing of a prompt that is too long for it', async () => {
    const { device, model } = open(config);
    using cache = new KeyValueCache(device, { capacity: 4 });
    let calls = 0;
    model.aroundForward({ before: () => void calls++ });
    const logitsAfter = nextLogits(model, { cache, chunk: 2 });
    await expect(logitsAfter(PROMPT)).rejects.toThrow(/at most 4 tokens, its capacity, got 5/);
    expect([calls, cache.length]).toEqual([0, 0]);
    await logitsAfter(PROMPT.slice(0, 4));
    expect(calls).toBe(2);
  });

  it.each(FAMILIES)('lets %s drop and tell documents apart as without it', async (_, family) => {
    const dropouts = { attn_pdrop: 0.5, resid_pdrop: 0.5, attention_dropout: 0.5 };
    const known = Object.entries(dropouts).filter(([name]) => name in family);
    const { device, model } = open({ ...family, ...Object.fromEntries(known) } as ModelConfig);
    const ids = device.tensor(Int32Array.from(PROMPT), [1, 5]);
    const segments = device.tensor(Uint32Array.of(0, 0, 1, 1, 1), [1, 5]);
    const found = [];
    for (const isTraining of [true, false]) {
      for (const isHeld of [true, false]) {
        using cache = new KeyValueCache(device, { capacity: 8 });
        device.random.begin({ step: 3, rowOffset: 0 });
        model.train(isTraining);
        const options = { segments, ...(isHeld && { cache }) };
        const logits = await device.noGrad(() => model.call(ids, options));
        found.push([...((await logits.toArray()) as Float32Array)]);
      }
    }
    const [dropped, droppedAlone, whole, wholeAlone] = found as [number[], ...number[][]];
    expectClose(dropped, droppedAlone!, TOLERANCE);
    expectClose(whole!, wholeAlone!, TOLERANCE);
    expect(dropped).not.toEqual(whole);
  });

  it.each(FAMILIES)('counts the positions of %s on, up to its last one', async (_, family) => {
    const { device, model } = open(family);
    using cache = new KeyValueCache(device, { capacity: POSITIONS + 1 });
    const logitsAfter = nextLogits(model, { cache });
    await logitsAfter(new Array<number>(POSITIONS - 1).fill(3));
    await logitsAfter(new Array<number>(POSITIONS).fill(3));
    await expect(logitsAfter(new Array<number>(POSITIONS + 1).fill(3))).rejects.toThrow(ShapeError);
  });
});

/** Returns how many numbers the keys of one token have in one block. */
function kvWidthOf({ model_type: family }: ModelConfig): number {
  const widths: Partial<Record<ModelConfig['model_type'], number>> = {
    ...{ gpt2: 12, qwen3: 6, gemma3_text: 6 },
  };
  return widths[family] ?? 4;
}

/**
 * Counts kernel calls, multiplications in matrix products, the keys that attention reads, and
 * uploads.
 */
function countCalls(on: Backend) {
  const run = on.run.bind(on);
  const write = on.write.bind(on);
  const none = { calls: 0, products: 0, attended: 0, uploads: 0 };
  let counts = { ...none };
  on.write = (buffer, byteOffset, bytes) => {
    counts.uploads += 1;
    write(buffer, byteOffset, bytes);
  };
  on.run = (kernel, call, scratch) => {
    counts.calls += 1;
    if (kernel === 'matmul') {
      const { m, n, k } = call as KernelCalls['matmul'];
      counts.products += m * n * k;
    } else if (kernel === 'attention') {
      counts.attended += (call as KernelCalls['attention']).numKeys;
    }
    run(kernel, call, scratch);
  };
  return {
    backend: on,
    take() {
      const taken = counts;
      counts = { ...none };
      return taken;
    },
  };
}
