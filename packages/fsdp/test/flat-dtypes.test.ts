// One instance may have frozen and trained parameters of several dtypes. Each kind becomes a flat
// parameter of its own dtype.

import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Linear, loadStateDict, Module, stateDict } from '@shardweave/nn';
import {
  add,
  type Backend,
  cast,
  type Device,
  type DType,
  type KernelCalls,
  mul,
  type Tensor,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { DIM, inputs, lossOf, onRanks, type Rank, Stack } from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, type Wrap, wrapIn } from './support/sharding.js';

/**
 * This module has a frozen layer in 16 bits beside a trained one in f32. Their sum is scaled by a
 * frozen f32 vector.
 */
class Adapted extends Module<[x: Tensor], Tensor> {
  readonly base: Linear;
  readonly adapter: Linear;
  readonly scale: Tensor;

  constructor(device: Device, dtype: 'f16' | 'bf16') {
    super(device);
    const options = { inFeatures: DIM, outFeatures: DIM };
    this.base = this.child('base', new Linear(device, options).to(dtype));
    this.adapter = this.child('adapter', new Linear(device, options));
    this.scale = this.parameter('scale', device.full([DIM], 0.5));
    for (const tensor of [...this.base.parameters(), this.scale]) {
      tensor.requiresGrad = false;
    }
  }

  async forward(x: Tensor): Promise<Tensor> {
    return mul(add(await this.base.call(x), await this.adapter.call(x)), this.scale);
  }
}

const build = (dtype: 'f16' | 'bf16') => (device: Device, wrap: Wrap) =>
  wrap(new Stack(device, [wrap(new Adapted(device, dtype)), wrap(new Adapted(device, dtype))]));

const PADDED = 256; // A weight and a bias begin at multiples of 128 elements.

describe.each([1, 2, 3])('world size %i', (worldSize) => {
  it.each([
    ['bf16', true],
    ['f16', false],
  ] as const)(
    'a model trains beside frozen %s, resharding %s, as the bare module',
    async (dtype, reshardAfterForward) => {
      await expectEqualTraining({ build: build(dtype), fsdp: { reshardAfterForward } }, worldSize);
    },
  );

  it('frozen 16-bit weights rest on the host as such', async () => {
    await expectEqualTraining({ build: build('bf16'), fsdp: { moveParamsToCpu: true } }, worldSize);
  });

  it('f32 ones are computed with in 16 bits, 16-bit ones in their own', () =>
    onRanks(worldSize, async ({ device, group }) => {
      const model = wrapIn(
        { group },
        { mixedPrecision: true, computeDType: 'bf16' },
      )(new Adapted(device, 'bf16'));
      const dtypes: [DType, DType][] = model.units.map(({ flat, full }) => [
        flat.dtype,
        full.storage.dtype,
      ]);
      expect(dtypes).toEqual([
        ['f32', 'bf16'],
        ['f32', 'bf16'],
        ['bf16', 'bf16'],
      ]);
      const loss = await device.scope(async () => {
        const result = lossOf(await model.call(inputs(device, { first: 0, count: 2 })));
        await result.backward();
        return result.item();
      });
      expect(loss).toBeGreaterThan(0);
    }));

  it('a state goes out in its dtypes and comes back', () =>
    onRanks(worldSize, async ({ device, group }) => {
      const make = () =>
        new FullyShardedDataParallel(new Adapted(device, 'bf16'), { processGroup: group });
      const [from, to] = [make(), make()];
      const state = await stateDict(from);
      const dtypes = [...state].map(([name, { dtype }]) => `${name} ${dtype}`);
      expect(dtypes.sort()).toEqual([
        'adapter.bias f32',
        'adapter.weight f32',
        'base.bias bf16',
        'base.weight bf16',
        'scale f32',
      ]);
      await loadStateDict(to, state);
      expect(await stateDict(to)).toEqual(state);
    }));
});

it('holds a frozen flat once, in its own dtype, on the wire too, and without a gradient', async () => {
  for (const worldSize of [1, 2]) {
    await onRanks(worldSize, async ({ device, group }) => {
      const model = wrapIn({ group }, { disableReshardOnRoot: false })(new Adapted(device, 'bf16'));
      const names = model.units.map(({ name, flat }) => [name, flat.dtype]);
      expect(names).toEqual([
        ['fsdp', 'f32'],
        ['fsdp.frozen', 'f32'],
        ['fsdp.frozen.bf16', 'bf16'],
      ]);
      const [trained, scale, frozen] = model.units;
      expect(frozen!.layout.sizes).toEqual([DIM * DIM, DIM]);
      await device.scope(async () => {
        await lossOf(await model.call(inputs(device, { first: 0, count: 2 }))).backward();
      });
      const received: [string | undefined, number][] = [];
      group.onTrace = ({ tag, bytes }) => void received.push([tag, bytes]);
      await device.scope(async () => {
        await model.call(inputs(device, { first: 0, count: 2 }));
      });
      const shard = PADDED / worldSize;
      expect(device.memory().live).toMatchObject({
        parameter: 4 * trained!.layout.shardLength + 4 * scale!.layout.shardLength + 2 * shard,
        gradient: 4 * trained!.layout.shardLength,
        gathered: 0,
      });
      const bytes = received
        .filter(([tag]) => tag === 'fsdp.frozen.bf16')
        .map(([, count]) => count);
      expect(bytes).toEqual(worldSize === 1 ? [] : [2 * shard]);
      expect(frozen!.flat.grad).toBeUndefined();
    });
  }
});

it('refuses what cannot be trained, and groups of several dtypes', () =>
  onRanks(1, async ({ device, group: processGroup }) => {
    const wrap = (module: Module, options: object = {}) => {
      return () => new FullyShardedDataParallel(module, { processGroup, ...options });
    };
    const adapted = new Adapted(device, 'bf16');
    const params = adapted.parameters();
    const groups = [{ name: 'all', params }];
    expect(wrap(adapted, { flattenParameters: groups })).toThrow(/one dtype in group 'all'/);
    expect(wrap(adapted, { flattenParameters: groups })).toThrow(FsdpConfigError);
    expect(wrap(adapted, { computeDType: 'bf16' })).toThrow(
      /expected bf16 parameters with computeDType/,
    );
  }));

it('ranks compare the dtypes of their flats', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const adapted = new Adapted(device, rank === 0 ? 'bf16' : 'f16');
    const model = wrapIn(
      { group },
      { flattenParameters: [{ name: 'base', params: adapted.base.parameters() }] },
    )(adapted);
    await expect(model.initialize()).rejects.toThrow(/fsdp\.base of 36 \+ 6 in bf16/);
  }));

/** A device that uses its right to write whole words: a 16-bit matrix ends in a word with a NaN. */
function clobbering(inner: Backend): Backend {
  const run: Backend['run'] = (kernel, call, scratch) => {
    inner.run(kernel, call, scratch);
    if (kernel === 'matmul') {
      const { buffer, byteOffset, size, dtype } = (call as KernelCalls['matmul']).out;
      if (dtype === 'bf16' && size % 2 === 1) {
        inner.write(buffer, byteOffset + 2 * size, Uint8Array.of(0xff, 0x7f));
      }
    }
  };
  const get = (_: Backend, key: keyof Backend) => {
    const member = inner[key];
    return key === 'run' ? run : typeof member === 'function' ? member.bind(inner) : member;
  };
  return new Proxy(inner, { get: get as NonNullable<ProxyHandler<Backend>['get']> });
}

it('keeps the padding behind an odd number of 16-bit gradients zero', async () => {
  const run = async ({ device, group: processGroup }: Rank) => {
    const layer = new Linear(device, { inFeatures: 5, outFeatures: 3, bias: false }).to('bf16');
    const model = new FullyShardedDataParallel(layer, { processGroup, computeDType: 'bf16' });
    await device.scope(async () => {
      const x = cast(device.full([7, 5], 0.5), 'bf16');
      await lossOf(await model.call(x)).backward();
    });
    return model.parameters()[0]!.piece!.flat.grad!.toArray();
  };
  const [gradients] = await onRanks(1, run, { backend: clobbering(createReferenceBackend()) });
  expect(gradients!.length).toBeGreaterThan(15);
  expect(new Set(gradients!.slice(15))).toEqual(new Set([0]));
  expect(gradients!.slice(0, 15)).not.toContain(0);
});
