// The keys and values of the tokens that a model has seen, so that the next one computes its own alone.

import { cast, type Device, slice, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, oneOf, optional, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import type { ModelConfig } from '../hf/model-config.js';

export interface KeyValueCacheOptions {
  /** Most tokens that it holds. */
  readonly capacity: number;
  /** Best what the model computes in: from another dtype all is converted at every call. Default f32. */
  readonly dtype?: 'f32' | 'f16' | 'bf16';
}

/**
 * Room for one sequence, taken at once: 2 * layers * capacity * kvHeads * headDim numbers. A call of the
 * model writes behind the tokens that are held, and only `append` makes them held ones: the same call made
 * again overwrites what the first one wrote.
 */
export class KeyValueCache {
  readonly capacity: number;
  readonly #layers: readonly LayerCache[];
  #tokens: number[] = [];

  constructor(device: Device, config: ModelConfig, options: KeyValueCacheOptions) {
    checkOptions<KeyValueCacheOptions>('KeyValueCache', options, {
      capacity: whole(1),
      dtype: optional(oneOf('f32', 'f16', 'bf16')),
    });
    const { capacity, dtype = 'f32' } = options;
    this.capacity = capacity;
    const { layers, heads, headDim } = sizesOf(config);
    const room = () => device.empty([1, capacity, heads, headDim], { dtype }).keep();
    this.#layers = Array.from(
      { length: layers },
      () => new LayerCache({ keys: room(), values: room(), length: () => this.length }),
    );
  }

  /** The tokens whose keys and values it holds. */
  get tokens(): readonly number[] {
    return this.#tokens;
  }

  /** The position of the next token. */
  get length(): number {
    return this.#tokens.length;
  }

  /** The part of the index-th block. */
  layer(index: number): LayerCache {
    return this.#layers[index]!;
  }

  /** Notes that a call has written these tokens behind those that are held. */
  append(tokens: readonly number[]): void {
    requireRoom(this.length + tokens.length, this.capacity);
    this.#tokens = [...this.#tokens, ...tokens];
  }

  /** Forgets the tokens from position `length` on. */
  truncate(length: number): void {
    this.#tokens = this.#tokens.slice(0, length);
  }

  dispose(): void {
    for (const layer of this.#layers) {
      layer.dispose();
    }
    this.#tokens = [];
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

/** One block's keys and values. Its fields are private: offload moves the tensors that it finds in arguments. */
export class LayerCache {
  readonly #keys: Tensor; // [1, capacity, heads, headDim]
  readonly #values: Tensor;
  readonly #length: () => number;

  constructor(options: {
    readonly keys: Tensor;
    readonly values: Tensor;
    readonly length: () => number;
  }) {
    this.#keys = options.keys;
    this.#values = options.values;
    this.#length = options.length;
  }

  /** The position of the next token. */
  get length(): number {
    return this.#length();
  }

  /**
   * Writes the keys and values of further tokens, and gives those of all up to them as views.
   * @param keys [1, seq, heads, headDim] @param values as keys
   * @throws {NnConfigError} beyond the capacity, for another shape, and where a graph is recorded: what lies
   *   in a cache gets no gradient
   */
  extend(keys: Tensor, values: Tensor): { readonly keys: Tensor; readonly values: Tensor } {
    const [, capacity, heads, headDim] = this.#keys.shape as [number, number, number, number];
    const [batch, seq] = keys.shape as [number, number];
    const expected = [1, seq, heads, headDim].join(', ');
    if ([keys, values].some(({ shape }) => shape.join(', ') !== expected)) {
      throw new NnConfigError(
        `KeyValueCache: expected one sequence with keys and values [${expected}], got ${batch} with [${keys.shape.join(', ')}].`,
      );
    }
    const { device } = keys;
    if (device.isGradEnabled && (keys.requiresGrad || values.requiresGrad)) {
      throw new NnConfigError(
        'KeyValueCache: expected a call inside device.noGrad, got one that records a graph. Keys and values that are held get no gradients.',
      );
    }
    const start = this.length;
    const end = start + seq;
    requireRoom(end, capacity);
    const add = (held: Tensor, fresh: Tensor) => {
      device.copyInto(slice(held, { axis: 1, start, end }), fresh);
      return cast(slice(held, { axis: 1, start: 0, end }), fresh.dtype);
    };
    return { keys: add(this.#keys, keys), values: add(this.#values, values) };
  }

  dispose(): void {
    this.#keys.dispose();
    this.#values.dispose();
  }
}

function requireRoom(length: number, capacity: number): void {
  if (length > capacity) {
    throw new NnConfigError(
      `KeyValueCache: expected at most ${capacity} tokens, its capacity, got ${length}. Truncate it, or make a larger one.`,
    );
  }
}

function sizesOf(config: ModelConfig) {
  return config.model_type === 'gpt2'
    ? { layers: config.n_layer, heads: config.n_head, headDim: config.n_embd / config.n_head }
    : {
        layers: config.num_hidden_layers,
        heads: config.num_key_value_heads,
        headDim: config.head_dim,
      };
}
