// Flats that rest in a store or on the device, for tests that compare both.

import { HostBuffers, StoredFlat, setFlatHome, storeUseOf } from '@shardweave/nn/flat';
import { type Device, type DType, Tensor } from '@shardweave/tensor-core';
import type { MapStore } from './map-store.js';
import { values } from './support.js';

/** The elements of a flat. */
export const SIZE = 256;

export interface Flat {
  readonly flat: Tensor;
  /** Two parameters, each of which has one half of the flat. */
  readonly halves: readonly Tensor[];
  /** The flat's home, or undefined where it rests on the device. */
  readonly home: StoredFlat | undefined;
  addGradient(seed: number): Promise<void>;
  read(): Promise<Uint8Array>;
}

export interface FlatOptions {
  readonly size?: number;
  readonly dtype?: DType;
  readonly name?: string;
  readonly resume?: boolean;
  readonly buffers?: HostBuffers;
}

/** Makes a flat at home in `store` or on the device. */
export async function makeFlat(
  device: Device,
  store: MapStore | undefined,
  {
    size = SIZE,
    dtype = 'f32',
    name = 'one',
    resume = false,
    buffers = new HostBuffers(),
  }: FlatOptions = {},
): Promise<Flat> {
  const flat = new Tensor(device.storage(size, dtype, 'parameter'), [size], 0, true);
  flat.name = name;
  const first = await device.scope(async () => {
    const source = device.tensor(values(size, 1), [size]);
    const target = new Tensor(device.storage(size, dtype, 'staging'), [size]);
    target.storage.fill();
    device.copyInto(target, source);
    const bytes = await target.storage.read();
    target.storage.release();
    return bytes;
  });
  const half = size / 2;
  const halves = [0, half].map((start) => {
    const piece = new Tensor(flat.storage, [half], start, true);
    piece.piece = { flat, start, length: half };
    return piece;
  });
  if (store === undefined) {
    flat.storage.fill();
    flat.storage.write(first);
    const addGradient = async (seed: number) => {
      const gradient = device.tensor(values(size, seed), [size]).keep();
      if (flat.grad === undefined) {
        flat.grad = gradient;
      } else {
        device.addInPlace(flat.grad, gradient);
        gradient.dispose();
      }
    };
    return { flat, halves, home: undefined, addGradient, read: () => flat.storage.read() };
  }
  const home = new StoredFlat(
    flat,
    { use: storeUseOf(store), rests: 'all', resume },
    () => buffers,
  );
  await home.open(name);
  setFlatHome(flat, home);
  if (!resume) {
    await home.parameter.write(first, 0);
  }
  return {
    flat,
    halves,
    home,
    addGradient: (seed) => home.gradient.addBytes(bytesOf(values(size, seed)), 'f32', 1),
    read: () => home.parameter.read(0, flat.storage.byteLength),
  };
}

export function bytesOf(numbers: ArrayLike<number>): Uint8Array {
  return new Uint8Array(Float32Array.from(numbers).buffer);
}
