// Calls that need all ranks run one after the other, in program order, whether awaited or not. A
// rank that makes another call than the others ends in an error that says which ranks made which
// call.

import type { PieceStore } from '@shardweave/checkpoint';
import {
  type FsdpError,
  FsdpRanksDifferError,
  FsdpStateError,
  type FullyShardedDataParallel,
} from '@shardweave/fsdp';
import {
  gatherFullOptimStateDict,
  loadLocalStateDict,
  localStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import {
  clipGradNorm,
  GradScaler,
  gradNorm,
  loadStateDict,
  saveCheckpoint,
  scaleGradients,
  stateDict,
} from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  inputs,
  lossOf,
  onRanks,
  type Rank,
  rejectionOf,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { bitsOf } from './support/offload-training.js';
import { adam, contentsOf, everything, net, place, train } from './support/saved-models.js';

const rowsOf = ({ rank }: Rank) => ({ first: 4 * rank, count: 4 });

/** Returns a save's destination whose files are begun only when it is opened. */
function gate() {
  let reach = () => {};
  let open = () => {};
  const reached = new Promise<void>((resolve) => {
    reach = resolve;
  });
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  const inner = place();
  const store: PieceStore = {
    ...inner,
    create: async (file) => {
      reach();
      await opened;
      return inner.create(file);
    },
  };
  return { store, reached, open: () => open() };
}

describe.each([1, 2, 3])('world size %i', (worldSize) => {
  it('calls made at once give what they give one after the other', () =>
    onRanks(worldSize, async (rank) => {
      const model = net(rank);
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      await trainOnce(model, rowsOf(rank), 1);
      const [one, two, files] = [await gradNorm(model), bitsOf(await stateDict(model)), place()];
      const full = await gatherFullOptimStateDict(model, optimizer);
      await saveCheckpoint(model, files);
      const again = place();
      const results = await Promise.all([
        stateDict(model),
        gradNorm(model),
        saveCheckpoint(model, again),
        gatherFullOptimStateDict(model, optimizer),
        stateDict(model),
        model.initialize(),
      ]);
      expect(bitsOf(results[0])).toEqual(two);
      expect(results[1]).toBe(one);
      if (rank.rank === 0) {
        expect(await contentsOf(again)).toEqual(await contentsOf(files));
      }
      expect(results[3]).toEqual(full);
      expect(bitsOf(results[4])).toEqual(two);
    }));

  it('collectives of calls made at once stand in the order of the calls', () =>
    onRanks(worldSize, async (rank) => {
      const model = net(rank);
      await trainOnce(model, rowsOf(rank));
      const calls = [
        () => stateDict(model),
        () => gradNorm(model),
        () => saveCheckpoint(model, place()),
        () => stateDict(model, { stateDictOnRank0Only: true }),
      ];
      const seen: string[] = [];
      rank.group.onTrace = ({ name, tag }) => seen.push(`${name} ${tag}`);
      for (const call of calls) {
        await call();
      }
      const expected = seen.splice(0);
      await Promise.all(calls.map((call) => call()));
      expect(seen).toEqual(expected);
    }));

  it('two calls of initialize at once are one', () =>
    onRanks(worldSize, async (rank) => {
      const model = net(rank);
      const [first, second, dict] = await Promise.all([
        model.initialize(),
        model.initialize(),
        stateDict(model),
      ]);
      expect(second).toBe(first);
      expect(bitsOf(await stateDict(model))).toEqual(bitsOf(dict));
    }));

  it('a save that nobody awaited ends before the next forward begins', async () => {
    const run = async (isAwaited: boolean) =>
      onRanks(worldSize, async (rank) => {
        const model = net(rank);
        const optimizer = adam(model);
        const files = place();
        await train(model, optimizer, { rank, steps: [0] });
        const saving = saveCheckpoint(model, files, { optimizer });
        if (isAwaited) {
          await saving;
        }
        await train(model, optimizer, { rank, steps: [1] });
        await saving;
        const contents = rank.rank === 0 ? await contentsOf(files) : undefined;
        return { contents, ...(await everything(model, optimizer)) };
      });
    expect(await run(false)).toEqual(await run(true));
  });

  it('a norm that nobody awaited is that of the gradients before the backward', () =>
    onRanks(worldSize, async (rank) => {
      const { device } = rank;
      const model = net(rank);
      await trainOnce(model, rowsOf(rank));
      const before = await gradNorm(model);
      await device.scope(async () => {
        const loss = lossOf((await model.call(inputs(device, rowsOf(rank), 1))) as Tensor);
        const norm = gradNorm(model);
        await loss.backward();
        expect(await norm).toBe(before);
        expect(await gradNorm(model)).not.toBe(before);
      });
    }));

  it.each([
    ['on the device', {}],
    ['on the host', { moveParamsToCpu: true }],
  ] as const)('a norm of gradients %s that nobody awaited has its turn before a forward', (...at) =>
    onRanks(worldSize, async (rank) => {
      const { device } = rank;
      const model = net(rank, at[1]);
      const optimizer = adam(model);
      await trainOnce(model, rowsOf(rank));
      const before = await gradNorm(model);
      await device.scope(async () => {
        const norm = gradNorm(model);
        const loss = lossOf((await model.call(inputs(device, rowsOf(rank), 1))) as Tensor);
        expect(await norm).toBe(before);
        await loss.backward();
        const after = await gradNorm(model);
        expect(after).not.toBe(before);
        const clipping = clipGradNorm(model, after / 2);
        await model.call(inputs(device, rowsOf(rank), 2));
        const clipped = await clipping;
        expect(await clipped.norm.item()).toBe(Math.fround(after));
        await scaleGradients(model, clipped.scale);
        expect(Math.abs((await gradNorm(model)) / after - 0.5)).toBeLessThan(1e-5);
      });
      await optimizer.step();
      optimizer.zeroGrad();
    }),
  );

  it('a save or dict beside a step is refused, for it would mix two of them', () =>
    onRanks(worldSize, async (rank) => {
      const model = net(rank);
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      await trainOnce(model, rowsOf(rank), 1);
      const { store, reached, open } = gate();
      const saving = saveCheckpoint(model, store);
      const refused = expect(saving).rejects.toThrow(/a step or a load of .* beside it/);
      await reached; // The save has begun.
      await optimizer.step();
      open();
      await refused;
      expect(await store.files()).toEqual([]);
    }));

  it('a call made in a forward that nobody awaited is refused at once', () =>
    onRanks(worldSize, async (rank) => {
      const { device } = rank;
      const model = net(rank);
      await model.initialize();
      await device.scope(async () => {
        const output = model.call(inputs(device, rowsOf(rank)));
        // All of them are made before the forward can go on.
        const calls = [
          stateDict(model),
          gradNorm(model),
          saveCheckpoint(model, place()),
          summonFullParams(model, () => undefined),
        ];
        for (const settled of await Promise.allSettled(calls)) {
          const reason = expect.any(FsdpStateError);
          expect(settled).toMatchObject({ status: 'rejected', reason });
        }
        await output;
      });
      expect((await stateDict(model)).size).toBeGreaterThan(0);
    }));
});

describe('one rank alone', () => {
  type Call = (model: FullyShardedDataParallel, rank: Rank) => Promise<unknown>;
  const calls: Record<string, Call> = {
    stateDict: (model) => stateDict(model),
    gradNorm: (model) => gradNorm(model),
    clipGradNorm: (model) => clipGradNorm(model, 1),
    summonFullParams: (model) => summonFullParams(model, () => undefined),
    saveCheckpoint: (model) => saveCheckpoint(model, place()),
    loadStateDict: async (model) => loadStateDict(model, new Map(), { strict: false }),
    loadLocalStateDict: async (model) => loadLocalStateDict(model, await localStateDict(model)),
    gatherFullOptimStateDict: (model) => gatherFullOptimStateDict(model, adam(model)),
    unscale: (model) => new GradScaler(model).unscale(adam(model)),
  };

  async function errorsOf(perRank: readonly (readonly [Call, Call])[]): Promise<FsdpError[]> {
    const errors: FsdpError[] = [];
    for (const [onFirst, onOthers] of perRank) {
      errors.push(
        ...(await onRanks(2, async (rank) => {
          const model = net(rank);
          await trainOnce(model, rowsOf(rank));
          const call = rank.rank === 0 ? onFirst : onOthers;
          return rejectionOf<FsdpError>(call(model, rank));
        })),
      );
    }
    return errors;
  }

  it.each(Object.keys(calls))('%s, while the other trains on: both say so', async (name) => {
    const forward: Call = (model, rank) => trainOnce(model, rowsOf(rank), 1);
    for (const error of await errorsOf([[calls[name]!, forward]])) {
      expect(error).toBeInstanceOf(FsdpRanksDifferError);
      expect(error.message).toContain(`rank 0 alone called ${name}, rank 1 was at`);
      expect(error.message).not.toContain('same parameters');
    }
  });

  it('two different calls: both are named', async () => {
    for (const error of await errorsOf([[calls.stateDict!, calls.gradNorm!]])) {
      expect(error).toBeInstanceOf(FsdpRanksDifferError);
      expect(error.message).toContain(
        'rank 0 alone called stateDict, rank 1 alone called gradNorm',
      );
    }
  });

  it('the same calls in another order', async () => {
    const inOrder =
      (...names: string[]): Call =>
      (model, rank) =>
        Promise.all(names.map((name) => calls[name]!(model, rank)));
    const pair = [inOrder('stateDict', 'gradNorm'), inOrder('gradNorm', 'stateDict')] as const;
    for (const error of await errorsOf([pair])) {
      expect(error.message).toContain(
        'rank 0 alone called stateDict, rank 1 alone called gradNorm',
      );
    }
  });
});

describe('loadStateDict agrees over ranks', () => {
  const filled = (entries: Awaited<ReturnType<typeof stateDict>>, value: number) => {
    for (const { data } of entries.values()) {
      new Float32Array(data.buffer).fill(value);
    }
    return entries;
  };

  it.each([
    ['other values', (entries: Awaited<ReturnType<typeof stateDict>>) => filled(entries, 2)],
    [
      'another name less',
      (entries: Awaited<ReturnType<typeof stateDict>>) => {
        filled(entries, 1).delete('0.bias');
        return entries;
      },
    ],
  ])('%s on one rank: an error on all, and nothing is loaded', (_, onLast) =>
    onRanks(3, async (rank) => {
      const model = net(rank);
      const before = bitsOf(await stateDict(model));
      const entries = await stateDict(model);
      const mine = rank.rank === 2 ? onLast(entries) : filled(entries, 1);
      const loading = loadStateDict(model, mine, { strict: false });
      await expect(loading).rejects.toThrow(/got others on rank 2 than on rank 0/);
      expect(bitsOf(await stateDict(model))).toEqual(before);
      await loadStateDict(model, filled(await stateDict(model), 3));
    }),
  );

  it('a name that one rank alone lacks: every rank stops', () =>
    onRanks(2, async (rank) => {
      const model = net(rank);
      const entries = await stateDict(model);
      const before = bitsOf(await stateDict(model));
      if (rank.rank === 1) {
        entries.delete('1.weight');
      }
      const expected = rank.rank === 1 ? /Missing: 1\.weight/ : /rank 1\/2 failed: .*1\.weight/;
      await expect(loadStateDict(model, filled(entries, 1))).rejects.toThrow(expected);
      expect(bitsOf(await stateDict(model))).toEqual(before);
    }));

  it('a shard that does not fit on one rank: every rank stops, and nothing is loaded', () =>
    onRanks(2, async (rank) => {
      const model = net(rank);
      const entries = await localStateDict(model);
      for (const [name, { data }] of entries) {
        entries.get(name)!.data.set(new Uint8Array(data.byteLength));
      }
      if (rank.rank === 1) {
        entries.delete('flat_param_0');
      }
      const before = bitsOf(await localStateDict(model));
      const expected = rank.rank === 1 ? /Missing: flat_param_0/ : /rank 1\/2 failed/;
      await expect(loadLocalStateDict(model, entries)).rejects.toThrow(expected);
      expect(bitsOf(await localStateDict(model))).toEqual(before);
    }));
});
