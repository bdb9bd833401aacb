// Forward, backward, evaluation, steps and loads come in other orders than one after the other
// here. Nothing computes with stale values, and nothing is left behind.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  clipGradNorm,
  gradNorm,
  loadStateDict,
  Sgd,
  scaleGradients,
  stateDict,
} from '@shardweave/nn';
import { add, type Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  evaluate,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, expectIdle, wrapIn } from './support/sharding.js';

function threeUnits({ device, group }: Rank, fsdp: object = {}) {
  const wrap = wrapIn({ group }, fsdp);
  const inner = new Stack(
    device,
    [0, 1].map((i) => wrap(layer(device), `unit ${i}`)).concat(wrap(layer(device), 'unit 2')),
  );
  return { inner, model: wrap(new Stack(device, [layer(device), inner]), 'root') };
}

describe.each([
  { worldSize: 1, fsdp: {} },
  { worldSize: 1, fsdp: { mixedPrecision: true, computeDType: 'bf16' } },
  { worldSize: 2, fsdp: {} },
  { worldSize: 2, fsdp: { reshardAfterForward: false } },
  { worldSize: 4, fsdp: { reshardAfterForward: false } }, // Some ranks hold only padding.
])('world size $worldSize, $fsdp', ({ worldSize, fsdp }) => {
  it('an evaluation between backward and step leaves nothing stale behind', async () => {
    const run = (isEvaluating: boolean) =>
      onRanks(worldSize, async (rank) => {
        const { model } = threeUnits(rank, fsdp);
        const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
        const losses: number[] = [];
        for (let step = 0; step < 3; step++) {
          losses.push(await trainOnce(model, rowsOf(rank), step));
          const before = isEvaluating ? await evaluate(model, rowsOf(rank)) : 0;
          await optimizer.step();
          optimizer.zeroGrad();
          if (isEvaluating) {
            expect(await evaluate(model, rowsOf(rank))).not.toBe(before);
          }
        }
        return losses;
      });
    expect(await run(true)).toEqual(await run(false));
  });

  it('training after an evaluation that stopped early uses the weights loaded since', () =>
    onRanks(worldSize, async (rank) => {
      const { model, inner } = threeUnits(rank, fsdp);
      const rows = rowsOf(rank);
      const first = await trainOnce(model, rows);
      const saved = await stateDict(model);
      inner.order = ['0'];
      await evaluate(model, rowsOf(rank));
      const zeros = new Map(
        [...saved].map(([name, entry]) => [
          name,
          { ...entry, data: new Uint8Array(entry.data.byteLength) },
        ]),
      );
      inner.order = ['0', '1', '2'];
      await loadStateDict(model, zeros);
      model.zeroGrad();
      expect(await trainOnce(model, rows)).toBe(0);
      inner.order = ['0'];
      await evaluate(model, rowsOf(rank));
      expect(isSame(await stateDict(model), zeros)).toBe(true);
      await loadStateDict(model, saved);
      inner.order = ['0', '1', '2'];
      expect(await trainOnce(model, rows)).toBe(first);
    }));
});

function isSame(
  a: Awaited<ReturnType<typeof stateDict>>,
  b: Awaited<ReturnType<typeof stateDict>>,
): boolean {
  return [...a].every(([name, { data }]) => Buffer.compare(data, b.get(name)!.data) === 0);
}

it.each([1, 2])(
  'world size %i: backwards of two forwards, the earlier one first',
  async (worldSize) => {
    await expectEqualTraining(
      {
        build: (device, wrap) => wrap(new Stack(device, [wrap(layer(device)), layer(device)])),
        run: (model, rows, step) =>
          model.device.scope(async () => {
            const { device } = model;
            const first = lossOf((await model.call(inputs(device, rows, step))) as Tensor);
            const second = lossOf((await model.call(inputs(device, rows, step + 9))) as Tensor);
            await first.backward();
            await second.backward();
            return second.item();
          }),
      },
      worldSize,
    );
  },
);

it.each([1, 2])(
  'world size %i: two backwards through one graph with retainGraph',
  async (worldSize) => {
    await expectEqualTraining(
      {
        build: (device, wrap) => wrap(new Stack(device, [wrap(layer(device)), layer(device)])),
        run: (model, rows, step) =>
          model.device.scope(async () => {
            const loss = lossOf((await model.call(inputs(model.device, rows, step))) as Tensor);
            await loss.backward({ retainGraph: true });
            await loss.backward();
            return loss.item();
          }),
      },
      worldSize,
    );
  },
);

it('refuses a second backward without a forward, and trains on', () =>
  onRanks(2, async (rank) => {
    const { model } = threeUnits(rank);
    const { device } = rank;
    await device.scope(async () => {
      const loss = lossOf((await model.call(inputs(device, { first: 0, count: 1 }))) as Tensor);
      await loss.backward();
      const norm = await gradNorm(model);
      await expect(loss.backward()).rejects.toThrow(/retainGraph/);
      expectIdle(model);
      expect(await gradNorm(model)).toBe(norm);
    });
    expect(device.memory().live).toMatchObject({ gathered: 0, activation: 0, staging: 0 });
    await trainOnce(model, { first: 0, count: 1 });
  }));

it('a forward that throws leaves states, memory, shards and accumulated gradients as they were', () =>
  onRanks(2, async (rank) => {
    const { device } = rank;
    const { model } = threeUnits(rank);
    const rows = rowsOf(rank);
    const expected = await (async () => {
      await model.noSync(() => trainOnce(model, rows, 0));
      await trainOnce(model, rows, 1);
      return gradNorm(model);
    })();
    model.zeroGrad();
    const weights = await stateDict(model);
    const atRest = device.memory().live;
    await model.noSync(() => trainOnce(model, rows, 0));
    const wrong = device.scope(async () => model.call(device.zeros([2, 5])));
    await expect(wrong).rejects.toThrow();
    expectIdle(model);
    expect(isSame(await stateDict(model), weights)).toBe(true);
    await trainOnce(model, rows, 1);
    expect(await gradNorm(model)).toBe(expected);
    model.zeroGrad();
    expect(device.memory().live).toEqual(atRest);
  }));

it('refuses summon, noSync, norms and loads inside forward and backward', () =>
  onRanks(2, async (rank) => {
    const { model } = threeUnits(rank);
    const rows = rowsOf(rank);
    const refused: string[] = [];
    const attempt = async () => {
      const calls = [
        () => summonFullParams(model, () => undefined),
        () => model.noSync(() => undefined),
        () => gradNorm(model),
        () => stateDict(model).then((entries) => loadStateDict(model, entries)),
      ];
      for (const call of calls) {
        refused.push(await call().then(String, (error) => (error as { code: string }).code));
      }
    };
    const stop = model.module.aroundForward({ before: attempt });
    await trainOnce(model, rows);
    expect(refused).toEqual(Array(4).fill('FSDP_STATE'));
    stop();
    const remove = rank.device.autograd.onGradientFinal(model.parameters()[0]!, attempt);
    await trainOnce(model, rows);
    expect(refused).toEqual(Array(8).fill('FSDP_STATE'));
    remove();
    await rank.device.scope(async () => {
      const output = (await model.call(inputs(rank.device, rows))) as Tensor;
      const loss = lossOf(output);
      rank.device.beforeGradientOf(output, attempt); // There is no gradient yet.
      await loss.backward();
    });
    expect(refused).toEqual(Array(12).fill('FSDP_STATE'));
  }));

it('zeroGrad of model or optimizer forgets what noSync added up', () =>
  onRanks(2, async (rank) => {
    const { model } = threeUnits(rank);
    const optimizer = new AdamW(model.parameters());
    const rows = rowsOf(rank);
    await trainOnce(model, rows, 1);
    const once = await gradNorm(model);
    for (const owner of [model, optimizer]) {
      owner.zeroGrad();
      await model.noSync(() => trainOnce(model, rows, 0));
      expect(rank.device.memory().live.gradient).toBeGreaterThan(0);
      owner.zeroGrad();
      expect(rank.device.memory().live.gradient).toBe(0);
      await trainOnce(model, rows, 1);
      expect(await gradNorm(model)).toBe(once);
    }
  }));

it('clipGradNorm bounds the norm, and leaves gradients alone where the bound is 0', () =>
  onRanks(2, async (rank) => {
    const { model } = threeUnits(rank);
    await trainOnce(model, rowsOf(rank));
    const norm = await gradNorm(model);
    const clip = async (maxNorm: number) => {
      const { norm, scale } = await clipGradNorm(model, maxNorm);
      await scaleGradients(model, scale);
      return norm.item();
    };
    expect(await clip(0)).toBe(Math.fround(norm));
    expect(await gradNorm(model)).toBe(norm);
    expect(await clip(norm / 2)).toBe(Math.fround(norm));
    expect(await gradNorm(model)).toBeCloseTo(norm / 2, 5);
  }));

it('gradScale scales the step as scaling the loss would', () =>
  onRanks(2, async (rank) => {
    const { device } = rank;
    const stepped = async (options: { readonly scale: number; readonly lr: number }) => {
      const model = new FullyShardedDataParallel(fixed(device), { processGroup: rank.group });
      const optimizer = new Sgd(model.parameters(), { lr: options.lr });
      await trainOnce(model, rowsOf(rank));
      await optimizer.step({ gradScale: device.full([1], options.scale) });
      return weightsOf(model);
    };
    expect(await stepped({ scale: 0.25, lr: 1 })).toEqual(await stepped({ scale: 1, lr: 0.25 }));
  }));

/** Makes a module with one weight of known values. */
const fixed = (device: Device) => {
  const bias = device.tensor(Float32Array.from({ length: 6 }, (_, i) => i / 8));
  return moduleOf(device, { bias }, ({ bias }, x: Tensor) => tanh(add(x, bias)));
};

it('stateDict reads and loadStateDict writes the summoned values inside summonFullParams', () =>
  onRanks(2, async (rank) => {
    const { model } = threeUnits(rank);
    const saved = await stateDict(model);
    await summonFullParams(model, async () => {
      for (const parameter of model.parameters()) {
        rank.device.backend.run('fill', { out: parameter.view(), value: 3 });
      }
      const [, { data }] = [...(await stateDict(model))][0]!;
      expect(new Set(new Float32Array(data.slice().buffer))).toEqual(new Set([3]));
      await loadStateDict(model, saved);
      const [first] = model.parameters();
      expect(Buffer.compare(await first!.toBytes(), [...saved.values()][0]!.data)).toBe(0);
    });
    expect(isSame(await stateDict(model), saved)).toBe(true);
  }));
