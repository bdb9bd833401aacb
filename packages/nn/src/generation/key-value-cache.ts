// The keys and values of the tokens that a model has seen, so that the model computes only those of
// the next token.

import { type Device, slice, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';

/** Options of a KeyValueCache: its capacity fixes how much memory each block takes. */
export interface KeyValueCacheOptions {
  /** Most tokens that the cache can hold. */
  readonly capacity: number;
}

/**
 * Room for one sequence: in each block 2 * capacity * kvHeads * headDim numbers of the dtype that
 * the model computes in, taken as the first keys come. A call of the model writes behind the tokens
 * that are held, and only `append` makes them held ones: the same call made again overwrites what
 * the first one wrote.
 */
export class KeyValueCache {
  readonly capacity: number;
  /** The device's own pool, where a dry run puts another in its place. */
  readonly #pool: object;
  readonly #layers = new Map<number, LayerCache>();
  #tokens: readonly number[] = [];

  constructor(device: Device, options: KeyValueCacheOptions) {
    checkOptions<KeyValueCacheOptions>('KeyValueCache', options, { capacity: whole(1) });
    this.capacity = options.capacity;
    this.#pool = device.pool;
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
    let layer = this.#layers.get(index);
    if (layer === undefined) {
      layer = new LayerCache(this, this.#pool);
      this.#layers.set(index, layer);
    }
    return layer;
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
    for (const layer of this.#layers.values()) {
      layer.dispose();
    }
    this.#layers.clear();
    this.#tokens = [];
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
 * One block's keys and values. Its fields are private: offload moves the tensors that it finds in
 * arguments.
 */
export class LayerCache {
  readonly #cache: KeyValueCache;
  readonly #pool: object;
  /** By pool: what a dry run makes ends with it, and so does the room that it took. */
  readonly #rooms = new WeakMap<object, Room>();

  /** @param pool of the room that stays */
  constructor(cache: KeyValueCache, pool: object) {
    this.#cache = cache;
    this.#pool = pool;
  }

  /** The position of the next token. */
  get length(): number {
    return this.#cache.length;
  }

  /**
   * Writes the keys and values of further tokens, and gives those of all up to them as views.
   * @param keys [1, seq, heads, headDim] @param values as keys
   * @throws {NnConfigError} beyond the capacity, for another shape or dtype than those before, and
   * where a
   *   graph is recorded: what lies in a cache gets no gradient
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
    const expected = textOf([seq, ...room.keys.shape.slice(2)], room.keys.dtype);
    for (const { shape, dtype } of [keys, values]) {
      const got = textOf(shape.slice(1), dtype);
      if (got !== expected) {
        throw new NnConfigError(
          `KeyValueCache: expected keys and values ${expected}, as those before, got ${got}. A cache is of one model.`,
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
  return `[1, ${shape.join(', ')}] in ${dtype}`;
}

/** @throws {NnConfigError} for more tokens than a cache holds */
export function requireRoom(length: number, capacity: number): void {
  if (length > capacity) {
    throw new NnConfigError(
      `KeyValueCache: expected at most ${capacity} tokens, its capacity, got ${length}. Truncate it, or make a larger one.`,
    );
  }
}
