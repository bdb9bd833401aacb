// Where initial values come from: a seed and a parameter's path. Each parameter has a random stream
// of its own, so values depend neither on the order of construction nor on wrapping, and all ranks
// of a job draw the same.

import { type Device, elementCountOf, type Shape, type Tensor } from '@shardweave/tensor-core';
import { joinPath } from './module.js';
import { philox } from './philox.js';

const FNV_PRIME = 0x01000193;
/** FNV's own offset basis, and a second one to make 64 bits of two 32-bit hashes. */
const FNV_BASIS = [0x811c9dc5, 0x1b873593] as const;

/** Makes the initial values of one module's parameters, in f32, on the host. */
export class ParameterInit {
  readonly device: Device;
  readonly seed: number;
  /** The module's path; parameters' names are joined to it. */
  readonly path: string;

  /** @param options.seed any safe integer; equal on all ranks */
  constructor(device: Device, options: { readonly seed: number; readonly path?: string }) {
    this.device = device;
    this.seed = options.seed;
    this.path = options.path ?? '';
  }

  /**
   * The source for a layer that was given none: seeded by the device's next random key, so that
   * layers differ and a program with the same seed makes the same ones.
   */
  static next(device: Device): ParameterInit {
    const { key0, key1 } = device.random.nextKey();
    return new ParameterInit(device, { seed: key0 + (key1 >>> 11) * 2 ** 32 });
  }

  /** The source for a child. */
  at(name: string): ParameterInit {
    return new ParameterInit(this.device, { seed: this.seed, path: joinPath(this.path, name) });
  }

  /** Normally distributed values (Box and Muller, 1958). Mean 0 and std 1 unless given. */
  normal(
    name: string,
    shape: Shape,
    options: { readonly mean?: number; readonly std?: number } = {},
  ): Tensor {
    const { mean = 0, std = 1 } = options;
    return this.#draw(name, shape, (words, values, at) => {
      for (let pair = 0; pair < 4; pair += 2) {
        const radius = Math.sqrt(-2 * Math.log(unit(words[pair]!)));
        const angle = 2 * Math.PI * unit(words[pair + 1]!);
        // Writes beyond the end of a typed array are dropped.
        values[at + pair] = mean + std * radius * Math.cos(angle);
        values[at + pair + 1] = mean + std * radius * Math.sin(angle);
      }
    });
  }

  /** Values evenly distributed in (low, high). */
  uniform(
    name: string,
    shape: Shape,
    options: { readonly low: number; readonly high: number },
  ): Tensor {
    const { low, high } = options;
    return this.#draw(name, shape, (words, values, at) => {
      for (let i = 0; i < 4; i++) values[at + i] = low + (high - low) * unit(words[i]!);
    });
  }

  zeros(shape: Shape): Tensor {
    return this.device.zeros(shape);
  }

  ones(shape: Shape): Tensor {
    return this.device.full(shape, 1);
  }

  #draw(
    name: string,
    shape: Shape,
    convert: (words: Uint32Array, values: Float32Array, at: number) => void,
  ): Tensor {
    const path = joinPath(this.path, name);
    const key0 = hash(path, FNV_BASIS[0] ^ (this.seed >>> 0));
    const key1 = hash(path, FNV_BASIS[1] ^ (Math.floor(this.seed / 2 ** 32) >>> 0));
    const values = new Float32Array(elementCountOf(shape));
    const words = new Uint32Array(4);
    for (let at = 0; at < values.length; at += 4) {
      philox(at / 4, key0, key1, words);
      convert(words, values, at);
    }
    return this.device.tensor(values, shape);
  }
}

/** A word as a number strictly between 0 and 1. */
function unit(word: number): number {
  return (word + 0.5) / 2 ** 32;
}

/** FNV-1a over UTF-16 units. */
function hash(text: string, basis: number): number {
  let value = basis >>> 0;
  for (let i = 0; i < text.length; i++) {
    value = Math.imul(value ^ text.charCodeAt(i), FNV_PRIME) >>> 0;
  }
  return value;
}
