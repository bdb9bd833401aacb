// Masters are f32, while computation and gathers are in 16 bits.

import type { FsdpOptions } from '@shardweave/fsdp';
import { localStateDict } from '@shardweave/fsdp/fairscale';
import { AdamW, gradNorm, Module } from '@shardweave/nn';
import { add, type Device, square, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  forwardBackward,
  inputs,
  layer,
  lossOf,
  onRanks,
  stepped,
} from '../../../tooling/test-kit/index.ts';
import { shardedGpt2, wrapIn } from './support/sharding.js';

const BATCH = 6; // 1, 2 and 3 ranks divide it.
const STEPS = 3;

/** Returns the losses over all rows, and this rank's largest bytes by tag, in a few steps. */
async function trained(worldSize: number, fsdp: Partial<FsdpOptions>) {
  const perRank = await onRanks(worldSize, async (rank) => {
    const { device } = rank;
    const { model } = shardedGpt2(rank, { fsdp });
    const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
    const count = BATCH / worldSize;
    const rows = { batch: BATCH, first: rank.rank * count, count };
    const losses = await stepped(optimizer, STEPS, (step) =>
      forwardBackward(device, model, step, rows),
    );
    const masters = await localStateDict(model);
    expect([...masters.values()].every(({ dtype }) => dtype === 'f32')).toBe(true);
    expect(model.instances().every(({ units }) => units[0]!.flat.dtype === 'f32')).toBe(true);
    const bits = [...masters.values()].flatMap(({ data }) => [
      ...new Uint32Array(data.slice().buffer),
    ]);
    return { losses, peak: device.memory().peak, bits, live: device.memory().live };
  });
  const losses = perRank[0]!.losses.map(
    (_, step) => perRank.reduce((total, rank) => total + rank.losses[step]!, 0) / worldSize,
  );
  return { losses, perRank };
}

describe.each([1, 3])('world size %i', (worldSize) => {
  it.each(['bf16', 'f16'] as const)(
    '%s: losses near those of f32 and different, 16-bit activations and gathered bytes',
    async (computeDType) => {
      const full = await trained(worldSize, {});
      const mixed = await trained(worldSize, { mixedPrecision: true, computeDType });
      mixed.losses.forEach((loss, step) => {
        const expected = full.losses[step]!;
        expect(Math.abs(loss - expected) / expected).toBeLessThan(5e-3);
        expect(loss).not.toBe(expected);
      });
      mixed.perRank.forEach(({ peak, bits, live }, rank) => {
        const f32 = full.perRank[rank]!.peak;
        expect(peak.activation).toBeLessThan(0.6 * f32.activation);
        if (worldSize > 1) {
          expect(peak.gathered).toBe(f32.gathered / 2);
        } else {
          expect(peak.gathered).toBeGreaterThan(0);
        }
        expect(peak.gathered).toBeLessThan(2 * f32.parameter * worldSize);
        expect(peak.parameter).toBe(f32.parameter);
        expect(live).toMatchObject({ gathered: 0, gradient: 0, staging: 0, activation: 0 });
        // Masters keep bits that neither 16-bit format has.
        expect(bits.some((word) => (word & 0x1fff) !== 0)).toBe(true);
      });
    },
  );
});

it('fp32ReduceScatter sums more exactly than the compute dtype', async () => {
  const norms = async (fsdp: Partial<FsdpOptions>) => {
    const perRank = await onRanks(4, async (rank) => {
      const { model } = shardedGpt2(rank, { fsdp });
      await forwardBackward(rank.device, model, 0, { batch: 4, first: rank.rank, count: 1 });
      const grads = model.instances().map(({ units }) => units[0]!.flat.grad!);
      return Promise.all(grads.map(async (grad) => (await grad.toArray()) as Float32Array));
    });
    return perRank.flatMap((grads) => grads.flatMap((grad) => [...grad]));
  };
  const mixed = { mixedPrecision: true, computeDType: 'bf16' } as const;
  const [exact, wide, narrow] = [
    await norms({ mixedPrecision: true, computeDType: 'f32' }),
    await norms({ ...mixed, fp32ReduceScatter: true }),
    await norms(mixed),
  ];
  const error = (values: readonly number[]) =>
    values.reduce((total, value, i) => total + (value - exact[i]!) ** 2, 0);
  expect(error(wide)).toBeLessThan(error(narrow));
  expect(error(wide)).toBeGreaterThan(0);
});

it('a loss scale of f16 overflows into a norm that is not finite, and zeroGrad clears it', () =>
  onRanks(2, async (rank) => {
    const { device, group } = rank;
    const model = wrapIn({ group }, { mixedPrecision: true, computeDType: 'f16' })(layer(device));
    const run = (factor: number) =>
      device.scope(async () => {
        const loss = lossOf(await model.call(inputs(device, { first: rank.rank, count: 2 })));
        await loss.backward({ gradient: device.full([], factor) });
        return gradNorm(model);
      });
    expect(Number.isFinite(await run(2 ** 20))).toBe(false);
    model.zeroGrad();
    const norm = await run(8);
    expect(Number.isFinite(norm)).toBe(true);
    expect(norm).toBeGreaterThan(0);
  }));

/** This object of a class holds two inputs, one of them nested. */
class Batch {
  readonly left: Tensor;
  readonly rest: { readonly right: readonly Tensor[] };
  readonly self: Batch;
  constructor(left: Tensor, right: Tensor) {
    this.left = left;
    this.rest = { right: [right] };
    this.self = this;
  }
}

/** This object has private state and no tensors. */
class Settings {
  readonly #scale = 2;
  get scale(): number {
    return this.#scale;
  }
}

class TwoInputs extends Module<
  [batch: Batch, ids: Map<string, Tensor>, settings: Settings],
  Tensor
> {
  readonly linear: Module;
  seen: unknown[] = [];
  constructor(device: Device) {
    super(device);
    this.linear = this.child('linear', layer(device));
  }
  async forward(batch: Batch, ids: Map<string, Tensor>, settings: Settings): Promise<Tensor> {
    const [right] = batch.rest.right;
    this.seen = [
      batch.left.dtype,
      right!.dtype,
      ids.get('ids')!.dtype,
      ids.get('x')!.dtype,
      batch.self === batch,
      settings.scale,
      batch instanceof Batch,
      ids.get('x') === batch.left,
    ];
    const first = (await this.linear.call(batch.left)) as Tensor;
    return add(first, (await this.linear.call(right!)) as Tensor);
  }
}

it.each([1, 2])(
  'world size %i: the root casts float inputs in any container, with autograd',
  (worldSize) =>
    onRanks(worldSize, async ({ device, group, rank }) => {
      const inner = new TwoInputs(device);
      const model = wrapIn({ group }, { mixedPrecision: true, computeDType: 'bf16' })(inner);
      const make = () => {
        const x = device.tensor(
          Float32Array.from({ length: DIM }, (_, i) => i + rank),
          [1, DIM],
          { requiresGrad: true },
        );
        return x.keep();
      };
      const [left, right] = [make(), make()];
      await device.scope(async () => {
        const ids = new Map([
          ['ids', device.tensor(new Int32Array([1, 2]))],
          ['x', left],
        ]);
        const output = (await model.call(new Batch(left, right), ids, new Settings())) as Tensor;
        expect(output.dtype).toBe('bf16');
        await sum(square(output)).backward();
      });
      expect(inner.seen).toEqual(['bf16', 'bf16', 'i32', 'bf16', true, 2, true, true]);
      for (const input of [left, right]) {
        expect(input.dtype).toBe('f32');
        expect(input.grad!.dtype).toBe('f32');
        const values = (await input.grad!.toArray()) as Float32Array;
        expect(values.some((value) => value !== 0)).toBe(true);
      }
    }),
);
