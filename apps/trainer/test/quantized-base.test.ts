// Adapters beside a base in ggml's blocks: under every strategy, on any number of ranks and in
// every precision, losses and adapters are those over the decoded base, bit for bit, although
// shards cut blocks anywhere.

import * as ddp from '@shardweave/ddp-buckets';
import { type BlockType, decodeBlocks, encodeBlocks } from '@shardweave/dtypes/blocks';
import * as fsdp from '@shardweave/fsdp';
import * as nn from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import * as offload from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { type Device, mean, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/ranks.js';

type Precision = 'f32' | 'f16' | 'bf16';
type Family = 'llama' | 'qwen3' | 'gemma3_text' | 'gpt2';

const WORDS = 300;
const CONFIGS: Readonly<Record<Family, object>> = {
  llama: {
    ...{ model_type: 'llama', hidden_size: 96, intermediate_size: 160, num_attention_heads: 3 },
    ...{
      num_hidden_layers: 2,
      vocab_size: WORDS,
      tie_word_embeddings: false,
      max_position_embeddings: 64,
    },
  },
  qwen3: {
    ...{ model_type: 'qwen3', hidden_size: 256, intermediate_size: 512, num_attention_heads: 4 },
    ...{ num_key_value_heads: 2, head_dim: 64, num_hidden_layers: 2, vocab_size: WORDS },
    tie_word_embeddings: true,
    max_position_embeddings: 64,
  },
  gemma3_text: {
    ...{ model_type: 'gemma3_text', hidden_size: 256, intermediate_size: 256, vocab_size: WORDS },
    ...{ num_attention_heads: 3, num_key_value_heads: 1, head_dim: 32, num_hidden_layers: 2 },
    layer_types: ['sliding_attention', 'full_attention'],
    sliding_window: 5,
    max_position_embeddings: 64,
  },
  gpt2: {
    model_type: 'gpt2',
    n_embd: 64,
    n_head: 2,
    n_layer: 2,
    n_positions: 32,
    vocab_size: WORDS,
  },
};

/** Makes the model with its adapters, of which the base is frozen; values come later. */
function adapted(device: Device, family: Family, baseDType: Precision): nn.LanguageModel {
  const config = nn.parseModelConfig(JSON.stringify(CONFIGS[family]));
  const model = nn.makeModel(device, config, { seed: 3, deferInit: true });
  nn.applyLora(model, { rank: 4, baseDType, seed: 5 });
  return model;
}

/** A base in blocks, and the same with the numbers that they decode to. */
interface Bases {
  readonly types: ReadonlyMap<string, BlockType>;
  readonly inBlocks: nn.StateDict;
  readonly decoded: nn.StateDict;
}

async function makeBases(family: Family, type: BlockType): Promise<Bases> {
  const [bases] = await onRanks(1, async ({ device }) => {
    const drawn = adapted(device, family, 'f32');
    await materialize(drawn);
    const floats = await nn.stateDict(drawn);
    const model = adapted(device, family, 'f32');
    const types = await nn.quantizeBase(model, { type });
    const base: Bases = { types, inBlocks: new Map(), decoded: new Map() };
    for (const [name, entry] of floats) {
      const own = types.get(name);
      if (own === undefined) {
        base.inBlocks.set(name, entry);
        base.decoded.set(name, entry);
        continue;
      }
      const numbers = new Float32Array(entry.data.slice().buffer);
      const blocks = encodeBlocks(own, numbers);
      decodeBlocks(own, blocks, numbers);
      const words = new Uint8Array(Math.ceil(blocks.length / 4) * 4);
      words.set(blocks);
      base.inBlocks.set(name, { dtype: 'u32', shape: [words.length / 4], data: words });
      base.decoded.set(name, { ...entry, data: new Uint8Array(numbers.buffer) });
    }
    return base;
  });
  return bases!;
}

type Wrap = (
  model: nn.LanguageModel,
  rank: Rank,
  computeDType: Precision,
) => nn.Module<nn.TokenArgs, Tensor>;

const packed = (model: nn.LanguageModel, computeDType: Precision) => {
  if (computeDType !== 'f32') {
    nn.packParameters(model, { computeDType });
  }
  return model;
};

const WRAPS: Readonly<Record<string, Wrap>> = {
  plain: (model, _, dtype) => packed(model, dtype),
  ddp: (model, { group }, dtype) =>
    new ddp.DistributedDataParallel(packed(model, dtype), { processGroup: group }),
  fsdp: (model, { group }, computeDType) => {
    const blocks = new Set<nn.Module>(model.layers().slice(1, -1));
    return fsdp.fullyShard(model, {
      processGroup: group,
      wrap: ({ module }) => blocks.has(module),
      ...(computeDType !== 'f32' && { mixedPrecision: true, computeDType }),
    });
  },
  offload: (model, _, computeDType) =>
    new offload.OffloadModel(model, {
      store: createHostStore(),
      numSlices: 2,
      ...(computeDType !== 'f32' && { computeDType }),
    }),
};

interface Cell {
  readonly wrap: string;
  readonly ranks: number;
  readonly precision: Precision;
  readonly family: Family;
  readonly type: BlockType;
}

/** The losses of four steps, and the adapters after them. */
async function trained(cell: Cell, bases: Bases, isInBlocks: boolean): Promise<unknown> {
  const results = await onRanks(cell.ranks, async (rank) => {
    const { device } = rank;
    const bare = adapted(device, cell.family, cell.precision);
    if (isInBlocks) {
      await nn.quantizeBase(bare, { type: cell.type });
    }
    const parameters = bare.parameters().filter(({ requiresGrad }) => requiresGrad);
    const model = WRAPS[cell.wrap]!(bare, rank, cell.precision);
    await nn.loadStateDict(model, isInBlocks ? bases.inBlocks : bases.decoded);
    const optimizer = new nn.AdamW(parameters, { lr: 0.02 });
    const losses: number[] = [];
    for (let step = 0; step < 4; step++) {
      const loss = await device.scope(async () => {
        const ids = Int32Array.from({ length: 24 }, (_, i) => (i * 7 + step + rank.rank) % WORDS);
        const tokens = device.tensor(ids, [2, 12]);
        const own = mean(await model.call(tokens, { targets: tokens }));
        await own.backward();
        return own.item();
      });
      losses.push(loss);
      const { scale } = await nn.clipGradNorm(model, 0.5);
      await optimizer.step({ gradScale: scale });
      optimizer.zeroGrad();
    }
    const state = await nn.stateDict(model, { onlyTrained: true });
    model.dispose();
    return { losses, adapters: [...state].map(([name, { data }]) => [name, hex(data)]) };
  });
  return results;
}

const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex');

const textOf = ({ wrap, ranks, precision, family }: Cell) =>
  `${wrap} ${ranks} ${precision} ${family}`;

const ALL: Cell[] = (['plain', 'ddp', 'fsdp', 'offload'] as const).flatMap((wrap) =>
  (wrap === 'ddp' || wrap === 'fsdp' ? [1, 2, 3, 4] : [1]).flatMap((ranks) =>
    (['f32', 'f16', 'bf16'] as const).flatMap((precision) => [
      { wrap, ranks, precision, family: 'llama', type: 'q4_0' } as const,
      { wrap, ranks, precision, family: 'qwen3', type: 'q4_K' } as const,
      { wrap, ranks, precision, family: 'gemma3_text', type: 'q4_K' } as const,
      { wrap, ranks, precision, family: 'gpt2', type: 'q5_1' } as const,
    ]),
  ),
);
/** One of each strategy, precision, family and number of ranks; all pairs in the long suite. */
const SOME = [
  'plain 1 bf16 qwen3',
  'ddp 2 f16 llama',
  'fsdp 1 f32 gpt2',
  'fsdp 2 f16 qwen3',
  'fsdp 2 bf16 gemma3_text',
  'fsdp 3 bf16 llama',
  'fsdp 4 f32 qwen3',
  'offload 1 bf16 gpt2',
].map((text) => ALL.find((cell) => text === textOf(cell))!);
const CELLS = process.env.SHARDWEAVE_LONG === '1' ? ALL : SOME;

describe('adapters beside a base in blocks', () => {
  const bases = new Map<string, Promise<Bases>>();
  const basesOf = ({ family, type }: Cell) => {
    const made = bases.get(family) ?? makeBases(family, type);
    bases.set(family, made);
    return made;
  };

  it.each(CELLS)('$wrap at $ranks in $precision, $family in $type', async (cell) => {
    const own = await basesOf(cell);
    const expected = (await trained(cell, own, false)) as { losses: number[] }[];
    expect(new Set(expected[0]!.losses).size).toBe(4);
    expect(await trained(cell, own, true)).toEqual(expected);
  });
});
