// An embedder that is replicated or sharded over ranks trains by cachedInfoNce as one process does
// with the whole batch, whichever backwards reduce.

import type { ProcessGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { Decoder, type Module, Sgd } from '@shardweave/nn';
import {
  type CachedInfoNceOptions,
  cachedInfoNce,
  type EmbeddingArgs,
  EmbeddingModel,
} from '@shardweave/nn/embedding';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { expectClose, onRanks, stepped, weightsOf } from '../../../tooling/test-kit/index.ts';
import { SMALL_BUCKETS } from './support/ranks.js';

type Embedder = Module<EmbeddingArgs, Tensor>;
type Wrap = (model: EmbeddingModel, processGroup: ProcessGroup) => Embedder;

const BATCH = 4;
const OPTIONS = { temperature: 0.5, chunkSize: 1 } satisfies CachedInfoNceOptions;
/** So many chunks does each of four ranks have: one query and one document. */
const CHUNKS = 2;

const WRAPS: Readonly<Record<string, Wrap>> = {
  ddp: (model, processGroup) =>
    new DistributedDataParallel(model, { ...SMALL_BUCKETS, processGroup }),
  fsdp: (model, processGroup) => {
    const { body } = model;
    for (const [name, block] of [...body.children()].slice(1, -1)) {
      body.replaceChild(name, new FullyShardedDataParallel(block, { processGroup }));
    }
    return new FullyShardedDataParallel(model, { processGroup });
  },
};

function makeModel(device: Device): EmbeddingModel {
  const config = {
    model_type: 'qwen3',
    vocab_size: 24,
    hidden_size: 8,
    intermediate_size: 12,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    max_position_embeddings: 8,
    initializer_range: 0.5,
    tie_word_embeddings: true,
  } as const;
  return new EmbeddingModel(new Decoder(device, config, { seed: 3 }), { pooling: 'last' });
}

/** The documents of a step that one of `worldSize` ranks has. */
function documentsOf(seed: number, rank: number, worldSize: number): number[][] {
  const count = BATCH / worldSize;
  return Array.from({ length: count }, (_, i) => {
    const index = rank * count + i;
    return Array.from(
      { length: 1 + ((index + seed) % 4) },
      (_, at) => (index * 5 + at * 3 + seed) % 24,
    );
  });
}

interface Trained {
  readonly losses: readonly number[];
  readonly weights: ReadonlyMap<string, ArrayLike<number>>;
  /** How many collectives reduced gradients in the last step. */
  readonly reductions: number;
}

function train(
  ranks: number,
  wrap: Wrap,
  options: Partial<CachedInfoNceOptions> = {},
): Promise<Trained[]> {
  return onRanks(ranks, async ({ device, rank, worldSize, group }) => {
    const own = await group.split(0);
    let reductions = 0;
    group.onTrace = ({ name }) => {
      reductions += Number(name === 'allReduce' || name === 'reduceScatter');
    };
    const model = wrap(makeModel(device), group);
    const losses = await stepped(new Sgd(model.parameters(), { lr: 0.5 }), 2, async (step) => {
      const [queries, documents] = [1, 2].map((kind) =>
        documentsOf(10 * step + kind, rank, worldSize),
      );
      const batch = { queries: queries!, documents: documents! };
      reductions = 0;
      const loss = await cachedInfoNce(model, batch, { ...OPTIONS, ...options, group: own });
      return loss.item();
    });
    return { losses, weights: await weightsOf(model), reductions };
  });
}

it.each(Object.entries(WRAPS))(
  '%s trains as one process does, reducing once a step or with each chunk',
  async (_, wrap) => {
    const [wanted] = await train(1, (model) => model);
    const once = await train(2, wrap);
    const each = await train(4, wrap, { reduceEachChunk: true });
    for (const { losses, weights } of [...once, ...each]) {
      expectClose(losses, wanted!.losses);
      expectClose(weights, wanted!.weights);
    }
    expect(once[0]!.reductions).toBeGreaterThan(0);
    expect(each[0]!.reductions).toBe(CHUNKS * once[0]!.reductions);
  },
);
