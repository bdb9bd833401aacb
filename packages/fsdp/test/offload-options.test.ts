// These tests cover the options that put shards on the host, and what else a user does with such a
// model: state dicts, summons, evaluation before training, frozen parts, the loss scaler.

import { FsdpConfigError, type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  type FullOptimStateDict,
  gatherFullOptimStateDict,
  loadFullOptimStateDict,
  loadLocalStateDict,
  localStateDict,
  summonFullParams,
} from '@shardweave/fsdp/fairscale';
import {
  type AdamOptions,
  AdamW,
  clipCoefficient,
  Gpt2,
  GradScaler,
  gradNorm,
  loadStateDict,
  type StateDict,
  stateDict,
} from '@shardweave/nn';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { crossEntropy } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  forwardBackward,
  onRanks,
  type Rank,
  TINY,
  tokens,
} from '../../../tooling/test-kit/index.ts';
import { bitsOf } from './support/offload-training.js';
import { shardedGpt2 } from './support/sharding.js';

const SMALL = { ...TINY, n_layer: 2 };

const HOST = { moveParamsToCpu: true } as const;

/** Changes every byte, so that no value stays; small integers keep floats finite. */
function changed(entries: StateDict): StateDict {
  return new Map(
    [...entries].map(([name, { data, ...entry }]) => {
      const other = data.map((byte, index) => (index % 2 === 1 ? byte ^ 0x80 : byte ^ 1));
      return [name, { ...entry, data: other }];
    }),
  );
}

/** Returns the loss of a batch, without gradients. */
async function evaluate({ device }: Rank, model: FullyShardedDataParallel): Promise<number> {
  const { ids, targets } = tokens(0, 2, 8, TINY.vocab_size!);
  return device.noGrad(() =>
    device.scope(async () => {
      const output = await model.call(device.tensor(ids, [2, 8]));
      return crossEntropy(output, device.tensor(targets, [2, 8])).item();
    }),
  );
}

describe('where parameters and gradients rest', () => {
  it.each([
    [{ moveParamsToCpu: true, moveGradsToCpu: false }, /moveGradsToCpu/],
    [{ offloadConfig: { store: createHostStore() }, moveGradsToCpu: false }, /moveGradsToCpu/],
    [{ offloadConfig: { store: createHostStore() }, moveParamsToCpu: false }, /moveParamsToCpu/],
  ] as const)('%o breaks', (options, message) =>
    onRanks(1, async (rank) => {
      expect(() => shardedGpt2(rank, { config: SMALL, fsdp: options })).toThrow(FsdpConfigError);
      expect(() => shardedGpt2(rank, { config: SMALL, fsdp: options })).toThrow(message);
    }),
  );

  it('gradients alone may rest on the host', () =>
    onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank, { config: SMALL, fsdp: { moveGradsToCpu: true } });
      const optimizer = new AdamW(model.parameters());
      await forwardBackward(rank.device, model, 0, { batch: 4, first: 2 * rank.rank, count: 2 });
      expect(rank.device.memory().live.gradient).toBe(0);
      for (const { units } of model.instances()) {
        expect(units[0]!.values.home!.hasGradient).toBe(true);
        expect(units[0]!.flat.storage.isFilled).toBe(true);
      }
      await optimizer.step();
      expect(rank.device.memory().live.optimizer).toBeGreaterThan(0);
    }));
});

describe.each([
  ['f32', { ...HOST }],
  ['mixed f16', { ...HOST, mixedPrecision: true, computeDType: 'f16' }],
  ['mixed bf16', { ...HOST, mixedPrecision: true, computeDType: 'bf16' }],
  ['pure f16', { ...HOST, computeDType: 'f16' }],
] as const)('with moveParamsToCpu, %s', (name, options) => {
  const isPure = name.startsWith('pure');
  const wrapped = ({ device, group }: Rank, fsdp: Partial<FsdpOptions> = options) => {
    const gpt2 = new Gpt2(device, SMALL, { seed: 3 });
    if (isPure) {
      gpt2.to('f16');
    }
    return new FullyShardedDataParallel(gpt2, { processGroup: group, ...fsdp });
  };

  it.each([1, 2])('state dicts before and after a forward, whole and local, %i ranks', (W) =>
    onRanks(W, async (rank) => {
      const resident = wrapped(rank, { ...options, moveParamsToCpu: false });
      const model = wrapped(rank);
      const first = await stateDict(model);
      expect(bitsOf(first)).toEqual(bitsOf(await stateDict(resident)));
      const loss = await evaluate(rank, model);
      expect(loss).toBe(await evaluate(rank, resident));
      expect(bitsOf(await stateDict(model))).toEqual(bitsOf(first));

      const local = await localStateDict(model);
      expect(bitsOf(local)).toEqual(bitsOf(await localStateDict(resident)));
      expect(rank.device.memory().live.optimizer).toBe(0);

      // The loaded values also replace what the root has gathered, on the host too.
      const other = changed(first);
      await loadStateDict(model, other);
      await loadStateDict(resident, other);
      expect(bitsOf(await stateDict(model))).toEqual(bitsOf(other));
      expect(await evaluate(rank, model)).toBe(await evaluate(rank, resident));
      expect(await evaluate(rank, model)).not.toBe(loss);
      await loadLocalStateDict(model, local);
      expect(await evaluate(rank, model)).toBe(loss);
    }),
  );

  it('a summon sees the values, keeps what each rank wrote into its own shard, and nothing if volatile', () =>
    onRanks(2, async (rank) => {
      const results: object[] = [];
      for (const model of [wrapped(rank), wrapped(rank, { ...options, moveParamsToCpu: false })]) {
        const before = await stateDict(model);
        const write = () => {
          for (const tensor of model.parameters()) {
            rank.device.backend.run('fill', { out: tensor.view(), value: 1 + rank.rank });
          }
        };
        await summonFullParams(model, write, { volatile: true });
        expect(bitsOf(await stateDict(model))).toEqual(bitsOf(before));
        await summonFullParams(model, write);
        results.push(bitsOf(await stateDict(model))); // This is a mix of both states.
      }
      expect(results[0]).toEqual(results[1]);
      expect(rank.device.memory().live.gathered).toBe(0);
    }));
});

it('what was gathered is stale once the shard is written', () =>
  onRanks(2, async (rank) => {
    const fsdp = { ...HOST, reshardAfterForward: false };
    const { model } = shardedGpt2(rank, { config: SMALL, fsdp });
    await evaluate(rank, model);
    for (const unit of model.instances().flatMap(({ units }) => units)) {
      expect(unit.full.isPresent).toBe(true);
      await unit.values.write(new Uint8Array(8), 16);
      expect(unit.full.isPresent).toBe(false);
      expect(await unit.values.read(16, 8)).toEqual(new Uint8Array(8));
    }
  }));

it('a body that throws inside a summon leaves what it wrote, and the parameters in place', () =>
  onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank, { config: SMALL, fsdp: HOST });
    const before = await stateDict(model);
    const broken = summonFullParams(model, () => {
      throw new Error('broken');
    });
    await expect(broken).rejects.toThrow('broken');
    expect(model.trainingState).toBe('idle');
    expect(bitsOf(await stateDict(model))).toEqual(bitsOf(before));
    expect(Number.isFinite(await evaluate(rank, model))).toBe(true);
  }));

describe('trained as on the device', () => {
  /** Compares the bits of losses and weights on the host with those on the device. */
  async function expectSame(
    run: (rank: Rank, fsdp: Partial<FsdpOptions>) => Promise<object>,
    worldSize = 2,
  ): Promise<void> {
    const [host, device] = [
      await onRanks(worldSize, (rank) => run(rank, { moveParamsToCpu: true })),
      await onRanks(worldSize, (rank) => run(rank, {})),
    ];
    expect(host).toEqual(device);
  }

  it('a model that was evaluated first trains alike', async () => {
    await expectSame(async (rank, fsdp) => {
      const { model } = shardedGpt2(rank, { config: SMALL, fsdp });
      const losses = [await evaluate(rank, model)];
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
      for (let step = 0; step < 2; step++) {
        const rows = { batch: 4, first: 2 * rank.rank, count: 2 };
        losses.push(await forwardBackward(rank.device, model, step, rows));
        await optimizer.step();
        optimizer.zeroGrad();
        losses.push(await evaluate(rank, model));
      }
      return { losses, weights: bitsOf(await stateDict(model)) };
    });
  });

  it('a model trains alike with frozen parts, which are never brought to the device or written', async () => {
    await expectSame(async (rank, fsdp) => {
      const gpt2 = new Gpt2(rank.device, SMALL, { seed: 3 });
      const [, first, second] = [...gpt2.children().keys()] as [string, string, string];
      const freeze = (name: string, every: number) => {
        gpt2
          .children()
          .get(name)!
          .parameters()
          .forEach((tensor, index) => {
            if (index % every === 0) {
              tensor.requiresGrad = false;
            }
          });
      };
      freeze(first, 1);
      freeze(second, 2);
      for (const name of [first, second]) {
        const options = { processGroup: rank.group, name, ...fsdp };
        gpt2.replaceChild(name, new FullyShardedDataParallel(gpt2.children().get(name)!, options));
      }
      const model = new FullyShardedDataParallel(gpt2, { processGroup: rank.group, ...fsdp });
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
      const losses: number[] = [];
      for (let step = 0; step < 3; step++) {
        const rows = { batch: 4, first: 2 * rank.rank, count: 2 };
        losses.push(await forwardBackward(rank.device, model, step, rows));
        await optimizer.step();
        optimizer.zeroGrad();
      }
      for (const unit of model.instances().flatMap(({ units }) => units)) {
        if (!unit.isAllFrozen || unit.values.home === undefined) {
          continue;
        }
        expect([unit.values.home.hasGradient, unit.values.home.states.step]).toEqual([
          false,
          undefined,
        ]);
      }
      return { losses, weights: bitsOf(await stateDict(model)) };
    });
  });

  it('a model trains alike from optimizer state that was gathered elsewhere, and back', async () => {
    const full = new Map<string, FullOptimStateDict<AdamOptions>>();
    const weights = new Map<string, StateDict>();
    const placements = { host: HOST, device: {} };
    const started = async (rank: Rank, placement: keyof typeof placements) => {
      const { model } = shardedGpt2(rank, { config: SMALL, fsdp: placements[placement] });
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
      const step = async (index: number) => {
        const rows = { batch: 4, first: 2 * rank.rank, count: 2 };
        await forwardBackward(rank.device, model, index, rows);
        await optimizer.step();
        optimizer.zeroGrad();
      };
      return { model, optimizer, step };
    };
    for (const placement of ['host', 'device'] as const) {
      await onRanks(2, async (rank) => {
        const { model, optimizer, step } = await started(rank, placement);
        await step(0);
        const gathered = await gatherFullOptimStateDict(model, optimizer);
        if (rank.rank === 0) {
          full.set(placement, gathered!);
        }
        weights.set(placement, await stateDict(model));
      });
    }
    expect(full.get('host')).toEqual(full.get('device'));

    const ends: object[] = [];
    for (const [placement, from] of [
      ['host', 'device'],
      ['device', 'host'],
    ] as const) {
      const [end] = await onRanks(1, async (rank) => {
        const { model, optimizer, step } = await started(rank, placement);
        await loadStateDict(model, weights.get(from)!);
        await loadFullOptimStateDict(model, optimizer, full.get(from)!);
        if (placement === 'host') {
          expect(rank.device.memory().live.optimizer).toBe(0);
        }
        await step(1);
        return bitsOf(await stateDict(model));
      });
      ends.push(end!);
    }
    expect(ends[0]).toEqual(ends[1]);
  });

  it.each(['host', 'disk'])(
    'a loss scaler that skips steps and clips trains alike, on the %s',
    async (tier) => {
      await expectSame(async (rank, given) => {
        let fsdp = given;
        let store: ShardStore | undefined;
        if (given.moveParamsToCpu && tier === 'disk') {
          store = await openDiskStore({ directory: newFolder() });
          fsdp = { offloadConfig: { store } };
        }
        const { device } = rank;
        const { model } = shardedGpt2(rank, {
          config: SMALL,
          fsdp: { mixedPrecision: true, computeDType: 'f16', ...fsdp },
        });
        const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
        const scaler = new GradScaler(model, { initScale: 2 ** 19 });
        const seen: (number | boolean)[] = [];
        for (let step = 0; step < 4; step++) {
          for (let part = 0; part < 2; part++) {
            await device.scope(async () => {
              const { ids, targets } = tokens(2 * step + part, 2, 8, TINY.vocab_size!);
              const output = await model.call(device.tensor(ids, [2, 8]));
              await scaler.scale(crossEntropy(output, device.tensor(targets, [2, 8]))).backward();
            });
          }
          const norm = await gradNorm(model);
          const isFound = !Number.isFinite(norm);
          seen.push(norm, isFound);
          if (!isFound) {
            const unscale = 1 / scaler.factor;
            const factor = clipCoefficient(norm * unscale, 0.5) * unscale;
            await device.scope(() => optimizer.step({ gradScale: device.full([1], factor) }));
          }
          scaler.update(isFound);
          optimizer.zeroGrad();
        }
        expect(new Set(seen.filter((value) => typeof value === 'boolean')).size).toBe(2);
        const weights = bitsOf(await stateDict(model));
        expect(store?.generation ?? 2).toBe(2); // Only steps that were taken count.
        await store?.close();
        return { seen, weights };
      });
    },
  );
});
