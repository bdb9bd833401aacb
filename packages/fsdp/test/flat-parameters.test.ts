// Flat parameters show only in the layout: outputs, states and ties equal those of the bare module,
// however the parameters are grouped.

import { type FsdpOptions, FullyShardedDataParallel, shardLayout } from '@shardweave/fsdp';
import { localStateDict } from '@shardweave/fsdp/fairscale';
import { AdamW, Linear, loadStateDict, Module, stateDict } from '@shardweave/nn';
import { cast, type Device, linear, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  inputs,
  layer,
  onRanks,
  outputOf,
  type Rank,
  rowsOf,
  Stack,
  stepped,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

/** This module reads its first layer's weight a second time at its end. */
class Tied extends Module<[x: Tensor], Tensor> {
  readonly first: Linear;
  readonly second: Linear;
  readonly last: Tensor;
  constructor(device: Device) {
    super(device);
    this.first = this.child('first', layer(device));
    this.second = this.child('second', new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
    this.last = this.sharedParameter('last', this.first.weight);
  }
  async forward(x: Tensor): Promise<Tensor> {
    const hidden = tanh(await this.second.call(tanh(await this.first.call(x))));
    return linear(hidden, { weight: this.last, transposeWeight: true });
  }
}

const LAYOUTS: Record<string, (module: Tied) => Partial<FsdpOptions>> = {
  'one flat': () => ({}),
  'each on its own': () => ({ flattenParameters: false }),
  'two groups': ({ first, second }) => ({
    flattenParameters: [
      { name: 'weights', params: [first.weight, second.weight] },
      { name: 'biases', params: [first.bias!, second.bias!] },
    ],
  }),
  'one group and the rest': ({ second }) => ({
    flattenParameters: [{ name: 'some', params: [second.bias!, second.weight] }],
  }),
};
const layouts = Object.keys(LAYOUTS);

function wrapped({ device, group }: Rank, layout: string, options: Partial<FsdpOptions> = {}) {
  const bare = new Tied(device);
  return wrapIn({ group }, { ...LAYOUTS[layout]!(bare), ...options })(bare);
}

const ROWS = { first: 0, count: 3 };

describe.each([1, 3])('world size %i', (worldSize) => {
  it.each(layouts)(
    '%s: output and state are those of the bare module, bit for bit',
    async (layout) => {
      const [bare] = await onRanks(1, async ({ device }) => {
        const module = new Tied(device);
        return { output: await outputOf(module, ROWS), state: await stateDict(module) };
      });
      await onRanks(worldSize, async (rank) => {
        const model = wrapped(rank, layout);
        expect(await outputOf(model, ROWS)).toEqual(bare!.output);
        const state = await stateDict(model);
        expect([...state.keys()]).toEqual([...bare!.state.keys()]);
        for (const [name, { data, shape }] of state) {
          expect(shape).toEqual(bare!.state.get(name)!.shape);
          expect(Buffer.compare(data, bare!.state.get(name)!.data), name).toBe(0);
        }
        // All elements are there, each in one flat parameter.
        const sizes = model.units.flatMap(({ layout }) => layout.sizes);
        expect(sizes.reduce((a, b) => a + b)).toBe(2 * (DIM * DIM + DIM));
        expect(sizes).toHaveLength(4);
        for (const unit of model.units) {
          expect(unit.layout).toEqual(shardLayout(unit.layout.sizes, worldSize));
          expect(unit.flat.shape).toEqual([unit.layout.shardLength]);
        }
      });
    },
  );

  it('a state loads from each layout into each other, and into the bare module', () =>
    onRanks(worldSize, async (rank) => {
      const { device } = rank;
      const source = wrapped(rank, 'one flat');
      await trainOnce(source, rowsOf(rank));
      const optimizer = new AdamW(source.parameters(), { lr: 0.1 });
      await optimizer.step();
      let state = await stateDict(source);
      const output = await outputOf(source, ROWS);
      for (const layout of [...layouts, ...layouts.toReversed()]) {
        const target = wrapped(rank, layout);
        expect(await outputOf(target, ROWS)).not.toEqual(output);
        await loadStateDict(target, state);
        expect(await outputOf(target, ROWS)).toEqual(output);
        state = await stateDict(target);
      }
      const bare = new Tied(device);
      await loadStateDict(bare, state);
      expect(await outputOf(bare, ROWS)).toEqual(output);
      const back = wrapped(rank, 'two groups');
      await loadStateDict(back, await stateDict(bare));
      expect(await outputOf(back, ROWS)).toEqual(output);
    }));
});

it('pads hold zeros, also after steps with decay', () =>
  onRanks(3, async (rank) => {
    const model = wrapped(rank, 'one flat');
    const optimizer = new AdamW(model.parameters(), { lr: 0.1, weightDecay: 0.5 });
    await stepped(optimizer, [0, 1], (step) => trainOnce(model, rowsOf(rank), step));
    const [unit] = model.units;
    const { offsets, sizes, shardLength } = unit!.layout;
    const { data } = [...(await localStateDict(model)).values()][0]!;
    const values = new Float32Array(data.slice().buffer);
    let numPads = 0;
    values.forEach((value, i) => {
      const at = rank.rank * shardLength + i;
      const isUsed = offsets.some((offset, index) => at >= offset && at < offset + sizes[index]!);
      if (isUsed) {
        expect(value).not.toBe(0);
      } else {
        numPads += 1;
        expect(value).toBe(0);
      }
    });
    expect(numPads).toBeGreaterThan(0);
  }));

it('a parameter of an inner instance is none of the outer flat', () =>
  onRanks(2, async ({ device, group }) => {
    const wrap = wrapIn({ group });
    const inner = wrap(layer(device));
    const outer = wrap(new Stack(device, [layer(device), inner, layer(device)]));
    const paths = outer.units.map(({ parameters }) => parameters.map(({ path }) => path));
    expect(paths).toEqual([['0.weight', '0.bias', '2.weight', '2.bias']]);
    const empty = wrap(new Stack(device, [inner]));
    expect(empty.units).toEqual([]);
  }));

it('a module brought to 16 bits before wrapping has a flat of 16 bits', async () => {
  const run = (module: Module, device: Device) =>
    device.noGrad(() =>
      device.scope(async () => (await module.call(cast(inputs(device, ROWS), 'bf16'))).toArray()),
    );
  const [bare] = await onRanks(1, ({ device }) => run(new Tied(device).to('bf16'), device));
  await onRanks(2, async ({ device, group }) => {
    const options = { processGroup: group, computeDType: 'bf16' } as const;
    const model = new FullyShardedDataParallel(new Tied(device).to('bf16'), options);
    expect(model.units.map(({ flat }) => flat.dtype)).toEqual(['bf16']);
    expect(await run(model, device)).toEqual(bare);
  });
});
