// Small trainings that give the same weights in every engine and on every machine. They are plain
// users of the packages, and know nothing of the engine that runs them.

import { piecesIn } from '@shardweave/checkpoint';
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { withDelay } from '@shardweave/collectives/testing';
import { fullyShard, type ModuleClass } from '@shardweave/fsdp';
import {
  AdamW,
  applyLora,
  clipGradNorm,
  Decoder,
  DecoderBlock,
  Gpt2,
  Gpt2Block,
  type LanguageModel,
  learningRateAt,
  loadCheckpoint,
  type Module,
  type Optimizer,
  quantizeBase,
  resolveDecoderConfig,
  type ScheduleOptions,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { type Backend, Device, mean, type Tensor } from '@shardweave/tensor-core';

/** The steps of a training, in the middle of which it is saved and goes on with new objects. */
export const STEPS = 20;

const ROWS = 2; // of each rank
const SEQ = 24;
const VOCABULARY = 61;
const LORA = { rank: 4, dropout: 0.1, seed: 2 };

/** A training: its model, how that is sharded, and how it is stepped. */
interface Recipe {
  /** Sums of more than two parts show in which order these are added. */
  readonly ranks: number;
  readonly make: (device: Device) => LanguageModel | Promise<LanguageModel>;
  readonly block: ModuleClass;
  readonly computeDType?: 'bf16';
  readonly optimizer: (params: readonly Tensor[]) => Optimizer<{ lr: number }>;
  readonly schedule: ScheduleOptions;
}

const cosine: ScheduleOptions = { kind: 'cosine', lr: 5e-3, warmupSteps: 3, totalSteps: STEPS };
const wsd: ScheduleOptions = { kind: 'wsd', lr: 0.05, totalSteps: STEPS, decaySteps: 6 };
const adamW = (params: readonly Tensor[]) => new AdamW(params, { weightDecay: 0.1 });
const sgd = (params: readonly Tensor[]) => new Sgd(params, { lr: 0.05, momentum: 0.9 });

const RECIPES = {
  'GPT-2, dropout, packed rows, AdamW, cosine': {
    ranks: 3,
    make: gpt2,
    block: Gpt2Block,
    optimizer: adamW,
    schedule: cosine,
  },
  'GPT-2 in bf16, dropout, packed rows, SGD, WSD': {
    ranks: 2,
    make: gpt2,
    block: Gpt2Block,
    computeDType: 'bf16',
    optimizer: sgd,
    schedule: wsd,
  },
  'Llama, LoRA over bf16, SGD, WSD': {
    ranks: 2,
    make: (device) => llama(device, 'bf16'),
    block: DecoderBlock,
    optimizer: sgd,
    schedule: wsd,
  },
  'Llama, LoRA over q4_K, AdamW, cosine': {
    ranks: 2,
    make: (device) => llama(device, 'q4_K'),
    block: DecoderBlock,
    optimizer: adamW,
    schedule: cosine,
  },
} satisfies Readonly<Record<string, Recipe>>;

/** The name of a program. */
export type Program = keyof typeof RECIPES;

export const PROGRAMS = Object.keys(RECIPES) as readonly Program[];

/** Runs a program on a device and returns the hash of its weights. */
export async function hashOf(program: Program, backend: Backend): Promise<string> {
  const recipe: Recipe = RECIPES[program];
  const store = piecesIn(createHostStore());
  const runRanks = (first: number) =>
    Promise.all(
      createMemoryGroup(recipe.ranks).map((each) => {
        // The second rank mostly comes last, so a sum by arrival is not one by rank.
        const group = each.rank === 1 ? withDelay(each, 8) : each;
        return train(recipe, backend, { group, first, store });
      }),
    );
  await runRanks(0);
  const [hash] = await runRanks(STEPS / 2);
  return hash!;
}

interface Part {
  readonly group: ProcessGroup;
  /** The part's first step; it ends in the middle or at the end. */
  readonly first: number;
  readonly store: ReturnType<typeof piecesIn>;
}

async function train(recipe: Recipe, backend: Backend, { group, first, store }: Part) {
  const device = new Device(backend, { seed: 7 });
  const model = fullyShard(await recipe.make(device), {
    processGroup: group,
    wrap: [recipe.block],
    ...(recipe.computeDType && { mixedPrecision: true, computeDType: recipe.computeDType }),
  });
  const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  const optimizer = recipe.optimizer(trained);
  if (first > 0) {
    await loadCheckpoint(model, store, { optimizer });
  }
  for (let step = first; step < first + STEPS / 2; step++) {
    for (const each of optimizer.groups) {
      each.lr = learningRateAt(step, recipe.schedule);
    }
    await device.scope(async () => {
      device.random.begin({ step, rowOffset: ROWS * group.rank });
      const { ids, ...places } = rowsOf(device, step, group.rank);
      const loss = mean(await model.call(ids, places));
      await loss.backward();
      const { scale } = await clipGradNorm(model, 1);
      await optimizer.step({ gradScale: scale });
      optimizer.zeroGrad();
    });
  }
  if (first === 0) {
    await saveCheckpoint(model, store, { optimizer });
  }
  const hash = first === 0 ? '' : await weightsHash(model);
  await group.close();
  optimizer.dispose();
  model.dispose();
  device.dispose();
  return hash;
}

/** The sha256 over the bytes of all parameters and buffers, in the order of their names. */
async function weightsHash(model: Module): Promise<string> {
  const entries = await stateDict(model);
  const parts = [...entries.keys()].sort().map((name) => entries.get(name)!.data);
  const bytes = new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer());
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return [...digest].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

function gpt2(device: Device): LanguageModel {
  const shape = { n_positions: SEQ, n_embd: 32, n_layer: 2, n_head: 2 };
  const dropout = { embd_pdrop: 0.1, attn_pdrop: 0.1, resid_pdrop: 0.1 };
  return new Gpt2(device, { vocab_size: VOCABULARY, ...shape, ...dropout }, { seed: 5 });
}

async function llama(device: Device, base: 'bf16' | 'q4_K'): Promise<LanguageModel> {
  const config = resolveDecoderConfig({
    model_type: 'llama',
    vocab_size: VOCABULARY,
    hidden_size: 64,
    intermediate_size: 256, // the rows of down_proj are whole blocks of q4_K
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: SEQ,
  });
  const model = new Decoder(device, config, { seed: 5 });
  applyLora(model, { ...LORA, ...(base === 'bf16' && { baseDType: base }) });
  if (base !== 'bf16') {
    await quantizeBase(model, { type: base });
  }
  return model;
}

/** The rows of a rank: documents of several lengths, each a count by a stride of its own. */
function rowsOf(device: Device, step: number, rank: number) {
  const numTokens = ROWS * SEQ;
  const ids = new Int32Array(numTokens);
  const targets = new Int32Array(numTokens);
  const positions = new Int32Array(numTokens);
  const segments = new Uint32Array(numTokens);
  let state = 1 + step * 64 + rank;
  const draw = (below: number) => {
    state = (state * 48_271) % 0x7fffffff;
    return state % below;
  };
  for (let at = 0, document = 0; at < numTokens; document++) {
    const length = Math.min(4 + draw(9), SEQ - (at % SEQ));
    const [start, stride] = [draw(VOCABULARY), 1 + draw(5)];
    for (let i = 0; i < length; i++, at++) {
      ids[at] = (start + i * stride) % VOCABULARY;
      targets[at] = i === length - 1 ? -100 : (start + (i + 1) * stride) % VOCABULARY;
      positions[at] = i;
      segments[at] = document;
    }
  }
  const shape = [ROWS, SEQ];
  return {
    ids: device.tensor(ids, shape),
    targets: device.tensor(targets, shape),
    positions: device.tensor(positions, shape),
    segments: device.tensor(segments, shape),
  };
}
