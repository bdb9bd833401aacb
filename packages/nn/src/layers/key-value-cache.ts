// The keys and values of tokens that a model has seen, so that it computes only those of new
// tokens.

import { type Device, slice, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** Options of a KeyValueCache: its capacity fixes how much memory each block takes. */
export interface KeyValueCacheOptions {
  /** Most tokens that the cache can hold. */
  readonly capacity: number;
}

/**
 * Keys and values of one sequence. Each block takes memory for 2 * capacity * kvHeads * headDim
 * numbers, in the dtype in which the model computes, when its first keys come. A call of the model
 * writes its keys and values after those that are held, but only `append` makes them count as held.
 * The same call made twice in a row writes them to the same place.
 */
export class KeyValueCache {
  readonly capacity: number;
  /** The device's own pool. A dry run replaces the device's pool for a while. */
  readonly #pool: object;
  readonly #layers = new Map<number, LayerCache>();
  readonly #tokens: number[] = [];

  constructor(device: Device, options: KeyValueCacheOptions) {
    checkOptions<KeyValueCacheOptions>('KeyValueCache', options, { capacity: whole(1) });
    this.capacity = options.capacity;
    this.#pool = device.pool;
  }

  /** The tokens whose keys and values the cache holds: one list, which changes with the cache. */
  get tokens(): readonly number[] {
    return this.#tokens;
  }

  /** The position of the next token. */
  get length(): number {
    return this.#tokens.length;
  }

  /** The part of the cache that belongs to the index-th block. */
  layer(index: number): LayerCache {
    let layer = this.#layers.get(index);
    if (layer === undefined) {
      layer = new LayerCache(this, this.#pool);
      this.#layers.set(index, layer);
    }
    return layer;
  }

  /**
   * Declares that a call has written these tokens after those that are held. They are held from now
   * on.
   */
  append(tokens: readonly number[]): void {
    requireRoom(this.length + tokens.length, this.capacity);
    for (const token of tokens) {
      this.#tokens.push(token);
    }
  }

  /** Forgets all tokens from position `length` on. */
  truncate(length: number): void {
    this.#tokens.splice(length);
  }

  dispose(): void {
    for (const layer of this.#layers.values()) {
      layer.dispose();
    }
    this.#layers.clear();
    this.truncate(0);
  }

  [Symbol.dispose](): void {
    this.dispose();
  }
}

interface Room {
  readonly keys: Tensor; // [1, capacity, heads, headDim]
  readonly values: Tensor;
}

/**
 * The keys and values of one block. Its fields are private because offload moves the tensors that
 * it finds in a call's arguments, and these must stay.
 */
export class LayerCache {
  readonly #cache: KeyValueCache;
  readonly #pool: object;
  /**
   * The memory by pool. A dry run computes in a pool of its own and takes memory there that ends
   * with it.
   */
  readonly #rooms = new WeakMap<object, Room>();

  /** @param pool the device's own pool, whose memory outlives each call */
  constructor(cache: KeyValueCache, pool: object) {
    this.#cache = cache;
    this.#pool = pool;
  }

  /** The position of the next token. */
  get length(): number {
    return this.#cache.length;
  }

  /**
   * Writes the keys and values of further tokens, and returns those of all tokens up to them as
   * views.
   * @param keys [1, seq, heads, headDim]
   * @param values of the same shape as keys
   * @throws {NnConfigError} beyond the capacity, for another shape or dtype than before, for more
   * than one sequence, and where a graph is recorded, because held keys and values get no gradients
   */
  extend(keys: Tensor, values: Tensor): { readonly keys: Tensor; readonly values: Tensor } {
    const [batch, seq] = keys.shape as [number, number];
    const { device } = keys;
    if (device.isGradEnabled && (keys.requiresGrad || values.requiresGrad)) {
      throw new NnConfigError(
        'KeyValueCache: expected a call inside device.noGrad, got one that records a graph. Keys and values that are held get no gradients.',
      );
    }
    if (batch !== 1) {
      throw new NnConfigError(
        `KeyValueCache: expected one sequence, got ${batch}. Give each a cache of its own.`,
      );
    }
    const start = this.length;
    const end = start + seq;
    requireRoom(end, this.#cache.capacity);
    const room = this.#roomFor(keys);
    const expected = [1, seq, ...room.keys.shape.slice(2)];
    for (const { shape, dtype } of [keys, values]) {
      if (dtype !== room.keys.dtype || !isSame(shape, expected)) {
        throw new NnConfigError(
          `KeyValueCache: expected keys and values ${textOf(expected, room.keys.dtype)}, as those before, got ${textOf(shape, dtype)}. A cache is of one model.`,
        );
      }
    }
    const add = (held: Tensor, fresh: Tensor) => {
      device.copyInto(slice(held, { axis: 1, start, end }), fresh);
      return slice(held, { axis: 1, start: 0, end });
    };
    return { keys: add(room.keys, keys), values: add(room.values, values) };
  }

  #roomFor({ device, shape, dtype }: Tensor): Room {
    const { pool } = device;
    const taken = this.#rooms.get(this.#pool) ?? this.#rooms.get(pool);
    if (taken !== undefined) {
      return taken;
    }
    const take = () => device.empty([1, this.#cache.capacity, ...shape.slice(2)], { dtype }).keep();
    const room = { keys: take(), values: take() };
    this.#rooms.set(pool, room);
    return room;
  }

  dispose(): void {
    const room = this.#rooms.get(this.#pool);
    room?.keys.dispose();
    room?.values.dispose();
    this.#rooms.delete(this.#pool);
  }
}

function textOf(shape: readonly number[], dtype: string): string {
  return `[${shape.join(', ')}] in ${dtype}`;
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((length, axis) => length === b[axis]);
}

/** @throws {NnConfigError} for more tokens than a cache holds */
export function requireRoom(length: number, capacity: number): void {
  if (length > capacity) {
    throw new NnConfigError(
      `KeyValueCache: expected at most ${capacity} tokens, its capacity, got ${length}. Truncate it, or make a larger one.`,
    );
  }
}
