// These are programs that people write: adversarial training, adapters on a frozen base, an encoder
// under two heads, forwards without a backward. Each must give the same result as without sharding.

import { type FsdpOptions, FsdpRanksDifferError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { clipGradNorm, GradScaler, loadStateDict, Module, Sgd, stateDict } from '@shardweave/nn';
import {
  add,
  type Device,
  linear,
  mean,
  mul,
  square,
  sub,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  expectClose,
  expectTrainedAsOneProcess,
  freeze,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  type Program,
  type Rank,
  type Rows,
  Stack,
  stepped,
  type Trained,
  trainOnce,
  type Weights,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, type Wrap, wrapIn } from './support/sharding.js';

const BATCH = 18; // It divides over 1, 2 or 3 ranks with three micro-batches each.

/** Trains on a place's rows, and returns the weights of its models. */
type WeightsOfAll = Program<Weights[], Partial<FsdpOptions>>;

async function expectAsOneProcess(
  program: WeightsOfAll,
  ranks: number,
  fsdp: Partial<FsdpOptions>,
): Promise<void> {
  const traced: Program<Trained, Partial<FsdpOptions>> = async (place) => ({
    losses: [],
    weights: await program(place),
  });
  const wrap = (rank: Rank) => wrapIn(rank, fsdp);
  await expectTrainedAsOneProcess(traced, { ranks, wrap, batch: BATCH });
}

const cells: readonly { readonly worldSize: number; readonly fsdp: Partial<FsdpOptions> }[] = [
  { worldSize: 1, fsdp: {} },
  { worldSize: 2, fsdp: {} },
  { worldSize: 3, fsdp: {} },
  { worldSize: 2, fsdp: { flattenParameters: false, bucketCapMb: 0 } },
  { worldSize: 3, fsdp: { reshardAfterForward: false } },
  { worldSize: 2, fsdp: { moveParamsToCpu: true } },
];

describe('a generator against a discriminator, two models and two optimizers', () => {
  const gan: WeightsOfAll = async ({ device, wrap, rows }) => {
    const make = () => wrap(new Stack(device, [wrap(layer(device)), layer(device)]));
    const [generator, discriminator] = [make(), make()];
    const optimizers = [generator, discriminator].map((m) => new Sgd(m.parameters(), { lr: 0.5 }));
    const judge = async (x: Tensor) => (await discriminator.call(x)) as Tensor;
    for (let step = 0; step < 3; step++) {
      await device.scope(async () => {
        const made = (await generator.call(inputs(device, rows, step))) as Tensor;
        const real = await judge(inputs(device, rows, step + 50));
        const fake = await judge(made.detach());
        await mean(sub(square(fake), square(real))).backward();
      });
      await optimizers[1]!.step();
      optimizers[1]!.zeroGrad();
      await device.scope(async () => {
        const made = (await generator.call(inputs(device, rows, step))) as Tensor;
        // This leaves gradients in the discriminator too.
        await lossOf(await judge(made)).backward();
      });
      await optimizers[0]!.step();
      optimizers[0]!.zeroGrad();
      optimizers[1]!.zeroGrad();
    }
    return [await weightsOf(generator), await weightsOf(discriminator)];
  };

  it.each(cells)('$worldSize ranks, $fsdp', async ({ worldSize, fsdp }) => {
    await expectAsOneProcess(gan, worldSize, fsdp);
  });
});

/** Makes a frozen layer with a low-rank sum beside it. */
function adapted(device: Device): Module {
  const values = (seed: number) =>
    Float32Array.from({ length: 2 * DIM }, (_, i) => 0.3 * Math.sin(i + seed));
  const down = device.tensor(values(1), [DIM, 2]);
  const up = device.tensor(values(2), [2, DIM]);
  const base = freeze(layer(device));
  return moduleOf(device, { base, down, up }, async ({ base, down, up }, x: Tensor) =>
    add(await base.call(x), linear(linear(x, { weight: down }), { weight: up })),
  );
}

describe('adapters on a frozen base, with noSync, a norm and a loss scale', () => {
  const MAX_NORM = 0.02;
  const isAdapter = (name: string) => /down|up/.test(name);

  async function tuned(
    device: Device,
    model: Module,
    rows: Rows,
    scaler: GradScaler | undefined,
  ): Promise<void> {
    const optimizer = new Sgd(model.parameters(), { lr: 0.5, momentum: 0.9 });
    const third = rows.count / 3;
    const micro = (k: number, step: number) =>
      device.scope(async () => {
        const x = inputs(device, { first: rows.first + k * third, count: third }, step);
        const loss = mul(lossOf((await model.call(x)) as Tensor), device.full([], 1 / 3));
        await (scaler?.scale(loss) ?? loss).backward();
      });
    for (let step = 0; step < 2; step++) {
      const firsts = async () => {
        await micro(0, step);
        await micro(1, step);
      };
      if (model instanceof FullyShardedDataParallel) {
        await model.noSync(firsts);
      } else {
        await firsts();
      }
      await micro(2, step);
      if (scaler !== undefined) {
        await scaler.unscale(optimizer);
        await device.scope(async () => {
          const { norm, scale } = await clipGradNorm(model, MAX_NORM);
          expect(await norm.item()).toBeGreaterThan(MAX_NORM);
          expect(await scaler.step(optimizer, { gradScale: scale })).toBe(true);
        });
        scaler.update();
      } else {
        await device.scope(async () => {
          const { scale } = await clipGradNorm(model, MAX_NORM);
          await optimizer.step({ gradScale: scale });
        });
      }
      optimizer.zeroGrad();
    }
    optimizer.dispose();
  }

  const make = (device: Device, wrap: Wrap) =>
    wrap(new Stack(device, [wrap(adapted(device)), wrap(adapted(device))]));

  it.each(cells)('$worldSize ranks, $fsdp', async ({ worldSize, fsdp }) => {
    const [plain] = await onRanks(1, async ({ device }) => {
      const model = make(device, (module) => module);
      const before = await weightsOf(model);
      // The k-th micro-batches of all ranks together make the k-th one here. Their order doesn't
      // matter.
      await tuned(device, model, { first: 0, count: BATCH }, undefined);
      return { before, after: await weightsOf(model) };
    });
    const count = BATCH / worldSize;
    await onRanks(worldSize, async ({ device, group, rank }) => {
      const wrap = wrapIn({ group }, fsdp);
      const model = make(device, wrap) as FullyShardedDataParallel;
      const scaler = new GradScaler(model);
      await tuned(device, model, { first: rank * count, count }, scaler);
      const after = await weightsOf(model);
      expectClose(after, plain!.after);
      for (const [name, values] of after) {
        const hasMoved = values.some((value, i) => value !== plain!.before.get(name)![i]);
        expect(hasMoved, name).toBe(isAdapter(name));
      }

      // The adapters alone are loaded into a model with other adapters on the same base.
      const whole = await stateDict(model);
      const adapters = new Map([...whole].filter(([name]) => isAdapter(name)));
      const other = make(device, wrap) as FullyShardedDataParallel;
      const bases = new Map([...whole].filter(([name]) => !isAdapter(name)));
      await loadStateDict(other, bases, { strict: false });
      expect(await stateDict(other)).not.toEqual(whole);
      await loadStateDict(other, adapters, { strict: false });
      expect(await stateDict(other)).toEqual(whole);
    });
  });
});

describe("an f16 overflow in one rank's micro-batch inside noSync", () => {
  it('skips the step on all ranks, and the next step is as if it had not happened', async () => {
    const run = async (rank: Rank, isOverflowing: boolean) => {
      const { device, group } = rank;
      const wrap = wrapIn({ group }, { mixedPrecision: true });
      const model = wrap(
        new Stack(device, [wrap(layer(device)), layer(device)]),
      ) as FullyShardedDataParallel;
      const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
      const scaler = new GradScaler(model, { initScale: 2 ** 8 });
      const micro = (first: number, factor: number) =>
        device.scope(async () => {
          const x = inputs(device, { first, count: 1 });
          const output = (await model.call(x)) as Tensor;
          await scaler.scale(mul(lossOf(output), device.full([], factor))).backward();
        });
      const before = await weightsOf(model);
      if (isOverflowing) {
        await model.noSync(() => micro(rank.rank, rank.rank === 1 ? 3e38 : 1));
        await micro(rank.rank, 1);
        expect(await scaler.step(optimizer)).toBe(false);
        scaler.update();
        optimizer.zeroGrad();
        expect(scaler.factor).toBe(2 ** 7);
        expect(await weightsOf(model)).toEqual(before);
      }
      await model.noSync(() => micro(2 + rank.rank, 1));
      await micro(4 + rank.rank, 1);
      expect(await scaler.step(optimizer)).toBe(true);
      scaler.update();
      const after = await weightsOf(model);
      expect(after).not.toEqual(before);
      return after;
    };
    const skipped = await onRanks(2, (rank) => run(rank, true));
    const plain = await onRanks(2, (rank) => run(rank, false));
    expect(skipped[1]).toEqual(skipped[0]);
    // The factor is a half, which changes only roundings of values below f16's normal range.
    for (const weights of skipped) {
      expectClose(weights, plain[0]!, 1e-4);
    }
  });
});

describe('one encoder under two roots', () => {
  const twoTasks: WeightsOfAll = async ({ device, wrap, rows }) => {
    const encoder = wrap(layer(device));
    const roots = [layer(device), layer(device)].map((head) =>
      wrap(new Stack(device, [encoder, head])),
    );
    const parameters = new Set(roots.flatMap((root) => root.parameters()));
    const optimizer = new Sgd([...parameters], { lr: 0.5 });
    await stepped(optimizer, [0, 1, 2, 3], (step) => trainOnce(roots[step % 2]!, rows, step));
    // Both run in one step, with one backward each.
    for (const root of roots) {
      await trainOnce(root, rows, 9);
    }
    await optimizer.step();
    optimizer.zeroGrad();
    return [await weightsOf(roots[0]!), await weightsOf(roots[1]!)];
  };

  it.each([1, 2, 3])('%i ranks', async (worldSize) => {
    await expectAsOneProcess(twoTasks, worldSize, {});
  });
});

describe('forwards that no backward follows', () => {
  it.each([{}, { reshardAfterForward: false }])('leave nothing behind, %j', (fsdp) =>
    onRanks(2, async ({ device, group, rank }) => {
      const wrap = wrapIn({ group }, fsdp);
      const model = wrap(new Stack(device, [wrap(layer(device)), layer(device)]));
      const rows = { first: rank, count: 1 };
      const forward = () => device.scope(async () => void (await model.call(inputs(device, rows))));
      await forward();
      const { live } = device.memory();
      const gathers = group.stats().allGathers;
      for (let i = 0; i < 10; i++) {
        await forward();
      }
      expect(device.memory().live).toEqual(live);
      expect(group.stats().allGathers - gathers).toBe('reshardAfterForward' in fsdp ? 0 : 10);
    }),
  );

  it('change nothing in the training around them', async () => {
    await expectEqualTraining(
      {
        build: (device, wrap) => wrap(new Stack(device, [wrap(layer(device)), layer(device)])),
        run: async (model, rows, step) => {
          const { device } = model;
          for (let i = 0; i < 3; i++) {
            await device.scope(async () => void (await model.call(inputs(device, rows, i))));
          }
          return trainOnce(model, rows, step);
        },
      },
      2,
    );
  });
});

describe('a loss that a module keeps aside', () => {
  /** This module notes the size of what it returns. */
  class Noting extends Module<[x: Tensor], Tensor> {
    readonly inner: Module;
    /** A value that is kept after forward. The code that adds it to a loss disposes it. */
    aside: Tensor | undefined;
    constructor(device: Device, inner: Module) {
      super(device);
      this.inner = this.child('inner', inner);
    }
    async forward(x: Tensor): Promise<Tensor> {
      const output = tanh((await this.inner.call(x)) as Tensor);
      this.aside = mean(square(output)).keep();
      return output;
    }
  }

  it.each([1, 2, 3])('trains where it is added to the main one, %i ranks', async (worldSize) => {
    const noting: Noting[] = [];
    await expectEqualTraining(
      {
        build: (device, wrap) => {
          const inner = new Noting(device, layer(device));
          noting.push(inner);
          return wrap(new Stack(device, [wrap(inner), layer(device)]));
        },
        run: (model, rows, step) =>
          model.device.scope(async () => {
            const own = noting.find(({ device }) => device === model.device)!;
            const main = lossOf((await model.call(inputs(model.device, rows, step))) as Tensor);
            const loss = add(main, own.aside!);
            await loss.backward();
            own.aside!.dispose();
            return loss.item();
          }),
      },
      worldSize,
    );
  });
});

it('generations of different lengths are told by name on every rank', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group });
    const model = wrap(new Stack(device, [wrap(layer(device), 'inner'), layer(device)]), 'root');
    const generate = () =>
      device.noGrad(() =>
        device.scope(async () => void (await model.call(inputs(device, { first: 0, count: 1 })))),
      );
    await generate();
    const rest = async () => {
      if (rank === 0) {
        await generate(); // Rank 0 generates once more than the others.
      }
      await trainOnce(model, { first: rank, count: 1 });
    };
    await expect(rest()).rejects.toBeInstanceOf(FsdpRanksDifferError);
  }));
