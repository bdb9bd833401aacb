// The parameters of the dispatches of a submit. They lie in one uniform buffer, each dispatch's in
// a slot of its own, and are written once before the submit.

import { byteSize } from '@shardweave/dtypes';
import { type Kernel, PARAM_BYTES } from '../kernel/kernel.js';
import { INF_BITS } from '../kernel/wgsl.js';
import type { BoundCall } from './recorder.js';

export class ParamBuffer {
  readonly uniform: GPUBuffer;
  readonly #queue: GPUQueue;
  readonly #bytes: ArrayBuffer;
  readonly #words: Uint32Array;
  readonly #floats: Float32Array;

  constructor(device: GPUDevice, numSlots: number) {
    this.#queue = device.queue;
    this.#bytes = new ArrayBuffer(numSlots * PARAM_BYTES);
    this.#words = new Uint32Array(this.#bytes);
    this.#floats = new Float32Array(this.#bytes);
    this.uniform = device.createBuffer({
      label: 'parameters',
      size: this.#bytes.byteLength,
      usage: 0x0040 | 0x0008, // UNIFORM | COPY_DST
    });
  }

  /**
   * Puts the parameters of a dispatch into a slot: those of the call, the first workgroup of a part
   * of a grid, and where the views begin in their ranges. Returns the slot's offset in bytes.
   */
  put(
    slot: number,
    kernel: Kernel,
    { params, views, ranges }: BoundCall,
    first: readonly number[],
  ): number {
    const base = (slot * PARAM_BYTES) / 4;
    const numOwn = kernel.params.length - kernel.bindings.length;
    const numGiven = numOwn - (kernel.isCuttable ? first.length : 0);
    const [words, floats] = [this.#words, this.#floats];
    for (let i = 0; i < numGiven; i++) {
      const { name, type } = kernel.params[i]!;
      const value = isList(params) ? params[i] : params[name];
      if (value === undefined) {
        throw new RangeError(`${kernel.label}: parameter ${name} is missing`);
      }
      const target = type === 'f32' ? floats : words;
      target[base + i] = value;
    }
    for (let i = numGiven; i < numOwn; i++) {
      words[base + i] = first[i - numGiven]!;
    }
    for (let i = 0; i < views.length; i++) {
      const { byteOffset, dtype } = views[i]!;
      words[base + numOwn + i] = (byteOffset - ranges[i]!.offset) / byteSize(dtype);
    }
    if (kernel.params.length * 4 < PARAM_BYTES) {
      words[base + kernel.params.length] = INF_BITS; // see SPECIAL_VALUES
    }
    return slot * PARAM_BYTES;
  }

  /** Writes the first slots to the device. */
  upload(numSlots: number): void {
    if (numSlots > 0) {
      this.#queue.writeBuffer(this.uniform, 0, this.#bytes, 0, numSlots * PARAM_BYTES);
    }
  }

  destroy(): void {
    this.uniform.destroy();
  }
}

function isList(params: BoundCall['params']): params is readonly number[] {
  return Array.isArray(params);
}
