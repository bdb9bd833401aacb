// vocabParallel: ranks compute with their own rows of a frozen token table, which is never whole
// on any of them.

import { PeerFailedError } from '@shardweave/collectives';
import {
  FsdpConfigError,
  type FsdpOptions,
  FsdpRanksDifferError,
  FsdpStateError,
  FullyShardedDataParallel,
  setGradientDivideFactors,
} from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import { Decoder, Embedding, LayerNorm, loadStateDict, Sgd, stateDict } from '@shardweave/nn';
import {
  type Device,
  DTypeError,
  mul,
  ShapeError,
  StateError,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  freeze,
  moduleOf,
  onRanks,
  type Rank,
  refusal,
  rejectionOf,
  TOLERANCE,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';

/** No number of ranks divides its words. */
const WORDS = 61;
/** Two runs of aligned elements, so that alignment alone makes no whole rows. */
const WIDTH = 256;
const SEQ = 5;
const ROWS = 6;
const TOKENS = ROWS * SEQ;

interface Case {
  readonly isTied: boolean;
  readonly dtype: 'f32' | 'bf16';
}

/** A decoder of one block, of which all but the tables is trained. */
function decoder(device: Device, { isTied, dtype }: Case): Decoder {
  const model = new Decoder(
    device,
    {
      ...{ model_type: 'llama', vocab_size: WORDS, hidden_size: WIDTH, num_hidden_layers: 1 },
      ...{ num_attention_heads: 2, num_key_value_heads: 1, intermediate_size: 64 },
      ...{ max_position_embeddings: 16, tie_word_embeddings: isTied },
    },
    { seed: 4 },
  );
  freeze(model, (name) => /embed_tokens|lm_head/.test(name));
  return dtype === 'f32' ? model : (model.to(dtype) as Decoder);
}

/** Ids of some of the batch's rows. One of them is outside the vocabulary, as some targets are. */
function rowsOf(device: Device, [first, end]: readonly [number, number]) {
  const shape = [end - first, SEQ];
  const of = (make: (token: number) => number) =>
    device.tensor(
      Int32Array.from({ length: (end - first) * SEQ }, (_, i) => make(first * SEQ + i)),
      shape,
    );
  return {
    ids: of((token) => (token === 7 ? WORDS : (token * 17) % WORDS)),
    targets: of((token) => (token % 9 === 4 ? -1 : (token * 23 + 5) % WORDS)),
  };
}

/** Uneven parts of the batch: 1, 2 and 3 rows of three ranks. */
function partOf({ rank, worldSize }: Pick<Rank, 'rank' | 'worldSize'>): readonly [number, number] {
  const cuts = worldSize === 2 ? [0, 2, ROWS] : [0, 1, 3, ROWS];
  return [cuts[rank]!, cuts[rank + 1]!];
}

/** The losses of some rows, in a step on the mean of all rows' losses. */
function step(model: Decoder | FullyShardedDataParallel, part: readonly [number, number]) {
  const { device } = model;
  const optimizer = new Sgd(model.parameters(), { lr: 1 });
  return device.scope(async () => {
    const { ids, targets } = rowsOf(device, part);
    const each: Tensor = await model.call(ids, { targets });
    await mul(sum(each), 1 / TOKENS).backward();
    await optimizer.step();
    return each.toArray();
  });
}

function wrap(model: Decoder, { group }: Rank, options: Partial<FsdpOptions> = {}) {
  const isMixed = model.parameters().some(({ dtype }) => dtype !== 'f32');
  const fsdp = new FullyShardedDataParallel(model, {
    processGroup: group,
    vocabParallel: true,
    syncModuleStates: false,
    computeDType: isMixed ? 'bf16' : 'f32',
    ...options,
  });
  setGradientDivideFactors(fsdp, { predivide: 1, postdivide: 1 });
  return fsdp;
}

const tables = ({ units }: FullyShardedDataParallel) =>
  units.filter(({ isTable }) => isTable).map(({ name }) => name);

const alone = <T>(body: (device: Device) => Promise<T>) =>
  onRanks(1, ({ device }) => body(device)).then(([result]) => result!);

it.each([
  { ranks: 2, isTied: true, dtype: 'f32' },
  { ranks: 3, isTied: false, dtype: 'f32' },
  { ranks: 3, isTied: true, dtype: 'bf16' },
] as const)('trains as one process does: $ranks ranks, tied $isTied, $dtype', async (given) => {
  const [expected, weights] = await alone(async (device) => {
    const model = decoder(device, given);
    return [await step(model, [0, ROWS]), await weightsOf(model)] as const;
  });
  await onRanks(given.ranks, async (rank) => {
    const model = wrap(decoder(rank.device, given), rank);
    expect(tables(model)).toHaveLength(given.isTied ? 1 : 2);
    const part = partOf(rank);
    const losses = await step(model, part);
    const tolerance = TOLERANCE[given.dtype];
    expectClose(losses, expected.subarray(part[0] * SEQ, part[1] * SEQ), tolerance, 'loss');
    expectClose(await weightsOf(model), weights, tolerance);
  });
});

it('a step holds and moves rows for tokens in place of the table', () =>
  onRanks(2, async (rank) => {
    const { device, group } = rank;
    const model = wrap(decoder(device, { isTied: true, dtype: 'f32' }), rank);
    await model.initialize();
    const [others, table] = model.units;
    expect(table!.layout).toMatchObject({ sizes: [WORDS * WIDTH], shardLength: 31 * WIDTH });
    const received = new Map<string | undefined, number>();
    group.onTrace = ({ tag, bytes }) => {
      received.set(tag, Math.max(received.get(tag) ?? 0, bytes));
    };
    device.ledger.resetPeak();
    await step(model, partOf(rank));
    expect(device.ledger.peak().gathered).toBe(4 * others!.layout.shardLength * 2);
    expect(received.get(table!.name)).toBe(4 * TOKENS * WIDTH); // gradients of hidden rows
    expect(device.memory().live.activation).toBe(0);
  }));

describe('outside the graph', () => {
  it.each([2, 3])(
    'looks up and scores with the bits of one process, on %i ranks',
    async (ranks) => {
      const given = { isTied: false, dtype: 'bf16' } as const;
      const run = (model: Decoder | FullyShardedDataParallel, part: readonly [number, number]) =>
        model.device.noGrad(() =>
          model.device.scope(async () => {
            const { ids } = rowsOf(model.device, part);
            const logits: Tensor = await model.call(ids);
            return logits.toArray();
          }),
        );
      const expected = await alone((device) => run(decoder(device, given), [0, ROWS]));
      await onRanks(ranks, async (rank) => {
        const part = partOf(rank);
        const logits = await run(wrap(decoder(rank.device, given), rank), part);
        const own = expected.subarray(part[0] * SEQ * WORDS, part[1] * SEQ * WORDS);
        expect(logits).toEqual(own);
      });
    },
  );

  it('a rank without tokens takes part', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const model = wrap(decoder(device, { isTied: true, dtype: 'f32' }), rank);
      const { ids, targets } = rowsOf(device, rank.rank === 0 ? [0, 0] : [0, 2]);
      const losses: Tensor = await device.noGrad(() => model.call(ids, { targets }));
      expect(losses.shape).toEqual([2 * rank.rank, SEQ]);
      ids.dispose();
    }));
});

it('a table whose values are shown is used by them', () =>
  onRanks(2, async (rank) => {
    const { device } = rank;
    const bare = decoder(device, { isTied: true, dtype: 'f32' });
    const { ids } = rowsOf(device, [0, 1]);
    const embedded = () =>
      bare
        .layers()[0]!
        .call(ids)
        .then((rows: Tensor) => rows.toArray());
    const before = await embedded();
    const model = wrap(bare, rank);
    await summonFullParams(model, async () => expect(await embedded()).toEqual(before));
  }));

it('a base that was not loaded after wrapping again is missed alike, and loaded then', () =>
  onRanks(3, async (rank) => {
    const bare = freeze(decoder(rank.device, { isTied: true, dtype: 'f32' }), (name) => {
      return !/q_proj/.test(name);
    });
    const options = { shardTrained: false };
    const wrapAll = () => {
      const { group: processGroup } = rank;
      const block = bare.layers()[1]!;
      const inner = { processGroup, syncModuleStates: false, ...options };
      bare.replaceChild('1', new FullyShardedDataParallel(block, inner));
      return wrap(bare, rank, options);
    };
    const model = wrapAll();
    await model.initialize();
    const [norm] = model.units; // too small for three ranks
    expect(norm!.layout.shardLength * 2).toBe(norm!.layout.elementCount);
    const base = await stateDict(model);
    const losses = await step(model, partOf(rank));
    model.unwrap();
    const again = wrapAll();
    const error = await rejectionOf<Error>(step(again, partOf(rank)));
    expect(error).toBeInstanceOf(StateError);
    expect(error.message).toMatch(/got none of '[a-z.]*layers.0/);
    await loadStateDict(again, base);
    expect(await step(again, partOf(rank))).toEqual(losses);
  }));

describe('a table that is gathered all the same', () => {
  const table = (device: Device, words: number, width = WIDTH) =>
    freeze(new Embedding(device, { numEmbeddings: words, embeddingDim: width }));
  const isShared = (embedding: Embedding, { group }: Rank, options: Partial<FsdpOptions> = {}) =>
    tables(
      new FullyShardedDataParallel(embedding, {
        ...{ processGroup: group, vocabParallel: true },
        ...options,
      }),
    ).length > 0;

  it('is trained, of cut rows, in another dtype than computation, or short of a row', () =>
    onRanks(3, async (rank) => {
      const { device } = rank;
      expect(isShared(table(device, 7), rank)).toBe(true);
      const trained = table(device, 7);
      trained.weight.requiresGrad = true;
      expect(isShared(trained, rank)).toBe(false);
      expect(isShared(table(device, 7, 100), rank)).toBe(false);
      expect(isShared(table(device, 4), rank)).toBe(false); // 2, 2 and 0 words
      const mixed = { mixedPrecision: true, computeDType: 'bf16' } as const;
      expect(isShared(table(device, 7), rank, mixed)).toBe(false);
      expect(isShared(table(device, 7), rank, { vocabParallel: false })).toBe(false);
    }));

  it('is used by a module that reads all of it', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const used = table(device, 8);
      const both = moduleOf(device, { used, weight: used.weight }, async ({ used }, ids: Tensor) =>
        used.call(ids),
      );
      const { group: processGroup } = rank;
      const fsdp = new FullyShardedDataParallel(both, { processGroup, vocabParallel: true });
      expect(tables(fsdp)).toEqual([]);
    }));
});

describe('refuses', () => {
  it.each([
    [{ gradientGroups: 4 }, /vocabParallel or gradientGroups, got both. Parts/],
    [{ findUnusedParameters: true }, /or findUnusedParameters, got both. All ranks/],
    [{ flattenParameters: [] }, /or groups in flattenParameters, got both. A table/],
    [{ moveParamsToCpu: true }, /or moveParamsToCpu or offloadConfig, got both. A table/],
  ] as const)('%o beside it', async (options, message) => {
    const given = { isTied: true, dtype: 'f32' } as const;
    const told = await refusal(FsdpConfigError, (rank) =>
      wrap(decoder(rank.device, given), rank, options as Partial<FsdpOptions>),
    );
    expect(told).toMatch(message);
  });

  it('logits that a gradient may come to, on all ranks', async () => {
    const told = await refusal(
      FsdpConfigError,
      async (rank) => {
        const model = wrap(decoder(rank.device, { isTied: true, dtype: 'f32' }), rank);
        const { ids } = rowsOf(rank.device, partOf(rank));
        await model.call(ids);
      },
      2,
    );
    expect(told).toMatch(
      /token table 'fsdp.model.embed_tokens.weight' .* that a gradient may come/,
    );
  });

  it('what one rank gives wrongly, and the others learn whose it was', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const model = wrap(decoder(device, { isTied: true, dtype: 'f32' }), rank);
      await model.initialize();
      const { ids, targets } = rowsOf(device, [0, 1]);
      const others = rowsOf(device, [0, 2]).targets;
      const given = rank.rank === 1 ? { targets: others } : { targets };
      const error = await rejectionOf<Error>(model.call(ids, given));
      if (rank.rank === 1) {
        expect(error).toBeInstanceOf(ShapeError);
        expect(error.message).toMatch(/x \[1, 5, 256\] and targets \[2, 5\]/);
      } else {
        expect(error).toBeInstanceOf(PeerFailedError);
        expect(error.message).toMatch(/rank 1 failed in forward: SHAPE: linearCrossEntropy/);
      }
    }));

  it('a module inside that is called without its wrapper, on any rank', async () => {
    const told = await refusal(
      FsdpStateError,
      async (rank) => {
        const bare = decoder(rank.device, { isTied: true, dtype: 'f32' });
        await wrap(bare, rank).initialize();
        if (rank.rank === 1) {
          throw new FsdpStateError('it calls nothing');
        }
        await bare.call(rowsOf(rank.device, [0, 1]).ids);
      },
      2,
    );
    expect(told).toMatch(
      /^rank 0\/2 forward: expected a call of the wrapper 'fsdp', which all ranks make, got one of/,
    );
  });

  it('a module that reads the weight of a layer', async () => {
    const told = await refusal(
      StateError,
      async (rank) => {
        const { device, group: processGroup } = rank;
        const used = freeze(new Embedding(device, { numEmbeddings: 8, embeddingDim: WIDTH }));
        const reads = moduleOf(device, { used }, async () => sum(used.weight));
        const fsdp = new FullyShardedDataParallel(reads, { processGroup, vocabParallel: true });
        await fsdp.call();
      },
      2,
    );
    expect(told).toMatch(/Token table 'fsdp.used.weight' is in parts \(vocabParallel\), and only/);
  });

  it('ranks that use different parameters, with no word of the option that it excludes', async () => {
    const told = await refusal(
      FsdpRanksDifferError,
      async ({ device, group: processGroup, rank }) => {
        const table = freeze(new Embedding(device, { numEmbeddings: 8, embeddingDim: WIDTH }));
        const norm = () => new LayerNorm(device, { normalizedShape: WIDTH });
        const model = moduleOf(device, { table, a: norm(), b: norm() }, async ({ table, a, b }) =>
          sum(await [a, b][rank]!.call(await table.call(device.tensor(Int32Array.of(1), [1])))),
        );
        const fsdp = new FullyShardedDataParallel(model, { processGroup, vocabParallel: true });
        await (await fsdp.call()).backward();
      },
      2,
    );
    expect(told).toMatch(/got gradients for 'fsdp: a.weight' on rank 0 alone.* on all ranks\.$/);
  });

  it('numbers for ids', async () => {
    const told = await refusal(
      DTypeError,
      async (rank) => {
        const model = wrap(decoder(rank.device, { isTied: true, dtype: 'f32' }), rank);
        await model.call(rank.device.zeros([1, SEQ]));
      },
      2,
    );
    expect(told).toBe('embedding: expected ids of i32 or u32, got f32.');
  });

  it('a table that is trained after it was wrapped', async () => {
    const told = await refusal(
      FsdpConfigError,
      async (rank) => {
        const bare = decoder(rank.device, { isTied: true, dtype: 'f32' });
        const model = wrap(bare, rank);
        await model.initialize();
        bare.parameters()[0]!.requiresGrad = true;
        const { ids, targets } = rowsOf(rank.device, partOf(rank));
        await model.call(ids, { targets });
      },
      2,
    );
    expect(told).toMatch(
      /expected token tables .* got requiresGrad of 'model.embed_tokens.weight'/,
    );
  });
});
