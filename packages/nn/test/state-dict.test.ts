import {
  checkpoint,
  type HostTensor,
  Linear,
  lazyStateDict,
  loadStateDict,
  Module,
  NnConfigError,
  packParameters,
  Sequential,
  StateDictError,
  stateDict,
} from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read } from './support/support.js';

class Scaled extends Module {
  readonly inner: Linear;
  readonly scale: Tensor;

  constructor(device: Device) {
    super(device);
    this.inner = this.child('inner', new Linear(device, { inFeatures: 2, outFeatures: 3 }));
    this.scale = this.buffer('scale', device.tensor([1.5, 2.5], [2], { dtype: 'bf16' }));
  }

  forward(): void {}
}

const half = (values: number[]) =>
  new Uint8Array(
    Uint16Array.from(values, (v) => new Uint32Array(Float32Array.of(v).buffer)[0]! >>> 16).buffer,
  );

describe('stateDict', () => {
  it('holds parameters and buffers by path, with dtype, shape and bytes', async () => {
    const device = makeDevice();
    const module = new Sequential(device, [new Scaled(device)]);
    const state = await stateDict(module);
    expect([...state.keys()]).toEqual(['0.inner.weight', '0.inner.bias', '0.scale']);
    const { weight } = (module.layers()[0] as Scaled).inner;
    expect(state.get('0.inner.weight')).toEqual({
      dtype: 'f32',
      shape: [3, 2],
      data: new Uint8Array(Float32Array.from(await read(weight)).buffer),
    });
    expect(state.get('0.scale')).toEqual({ dtype: 'bf16', shape: [2], data: half([1.5, 2.5]) });
  });

  it('goes between plain, packed and checkpointed modules', async () => {
    const make = (seed: number) =>
      new Linear(makeDevice({ seed }), { inFeatures: 5, outFeatures: 3 });
    const state = await stateDict(make(1));
    const packed = make(2);
    packParameters(packed);
    await loadStateDict(packed, state);
    expect(await stateDict(packed)).toEqual(state);
    const wrapped = checkpoint(make(3));
    await loadStateDict(wrapped, await stateDict(packed));
    expect(await stateDict(wrapped)).toEqual(state);
  });

  it('is lazy where asked: reads a tensor when it is wanted, as it is then', async () => {
    const device = makeDevice();
    const module = new Linear(device, { inFeatures: 5, outFeatures: 3 });
    packParameters(module);
    const numRead: number[] = [];
    const { backend } = device;
    const read = backend.read.bind(backend);
    backend.read = (...args) => {
      numRead.push(args[2]);
      return read(...args);
    };
    const state = await lazyStateDict(module);
    expect(numRead).toEqual([]);
    const other = new Linear(makeDevice({ seed: 9 }), { inFeatures: 5, outFeatures: 3 });
    await loadStateDict(module, await stateDict(other));
    for (const [name, { dtype, shape, data }] of await stateDict(module)) {
      const entry = state.get(name)!;
      numRead.length = 0;
      expect([entry.dtype, entry.shape, await entry.read()]).toEqual([dtype, shape, data]);
      expect(numRead).toEqual([data.byteLength]);
    }
    expect(state.size).toBe(2);
  });

  it('is refused for a shard', async () => {
    const linear = new Linear(makeDevice(), { inFeatures: 2, outFeatures: 3 });
    linear.weight.piece = { flat: linear.weight, start: 0, length: 2 };
    await expect(stateDict(linear)).rejects.toThrow(NnConfigError);
  });
});

describe('loadStateDict', () => {
  it('converts to the dtype of the parameter, either way', async () => {
    const module = new Scaled(makeDevice());
    const state = await stateDict(module);
    const bias = { dtype: 'bf16', shape: [3], data: half([1, -2, 0.5]) } as const;
    const scale = {
      dtype: 'f32',
      shape: [2],
      data: new Uint8Array(Float32Array.of(3, 4).buffer),
    } as const;
    await loadStateDict(module, new Map([...state, ['inner.bias', bias], ['scale', scale]]));
    expect(await read(module.inner.bias!)).toEqual([1, -2, 0.5]);
    expect(await read(module.scale)).toEqual([3, 4]);
    expect(module.device.ledger.live().staging).toBe(0);
  });

  it('lists all that is wrong and loads nothing, unless it is told not to be strict', async () => {
    const module = new Scaled(makeDevice());
    const state = await stateDict(module);
    const bias = { dtype: 'f32', shape: [3], data: new Uint8Array(12) } as const;
    const partial = new Map([
      ['inner.bias', bias],
      ['more', bias],
    ]);
    const before = await read(module.inner.bias!);
    await expect(loadStateDict(module, partial)).rejects.toThrow(StateDictError);
    await expect(loadStateDict(module, partial)).rejects.toThrow(
      'expected the 3 entries of this model. Missing: inner.weight, scale. Unexpected: more.',
    );
    expect(await read(module.inner.bias!)).toEqual(before);
    await loadStateDict(module, partial, { strict: false });
    expect(await read(module.inner.bias!)).toEqual([0, 0, 0]);
    const misshapen = new Map([...state, ['scale', { ...state.get('scale')!, shape: [1, 2] }]]);
    await expect(loadStateDict(module, misshapen, { strict: false })).rejects.toThrow(
      "Misshapen: 'scale': expected bf16 [2], got bf16 [1, 2] of 4 bytes. Shapes have to be equal",
    );
    for (const bytes of [0, 3, 5, 8]) {
      const scale = { ...state.get('scale')!, data: new Uint8Array(bytes) };
      await expect(loadStateDict(module, new Map([...state, ['scale', scale]]))).rejects.toThrow(
        `'scale': expected bf16 [2], got bf16 [2] of ${bytes} bytes`,
      );
    }
    const wide = { dtype: 'f64', shape: [3], data: new Uint8Array(24) } as const;
    const strange = new Map<string, HostTensor>([...state, ['inner.bias', wide]]);
    await expect(loadStateDict(module, strange)).rejects.toThrow(
      "'inner.bias': expected f32 [3], got f64 [3] of 24 bytes",
    );
    const bits = new Map(
      [...state].map(([name, each]) => [name, { ...each, dtype: 'i32' as const }]),
    );
    await expect(loadStateDict(module, bits)).rejects.toThrow(
      'expected f32 [3, 2], got i32 [3, 2] of 24 bytes',
    );
  });
});
