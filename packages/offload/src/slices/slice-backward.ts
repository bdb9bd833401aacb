// The backward of an offloaded model: slices come in the reverse order of forward, one is on the
// device at a time, and its gradients leave for the store when the next one comes.

import type { Pass } from '@shardweave/tensor-core';
import type { OffloadSlice } from './offload-slice.js';
import { beginSliceRange, type SliceContext } from './slice-context.js';

export interface SliceBackwardOptions {
  /** The most bytes of gradients on their way to the store while a slice is waited for. */
  readonly loadAheadBytes: number;
  /** @throws {OffloadBusyError} while something else has not ended */
  requireIdle(): void;
  /** Called when all slices have left, and the store has their gradients. */
  onEnd(): void;
  onFailure(): void;
}

export class SliceBackward {
  readonly #context: SliceContext;
  readonly #options: SliceBackwardOptions;
  /** The gradients on their way to the store, each with the bytes that it takes on the host. */
  readonly #stores = new Map<Promise<void>, number>();
  #current: OffloadSlice | undefined;
  #pass: Pass | undefined;
  /** Ends the trace's range of the current slice. */
  #endRange: () => void = () => {};

  constructor(context: SliceContext, options: SliceBackwardOptions) {
    this.#context = context;
    this.#options = options;
  }

  /** Called before a slice's nodes run: the slice before it leaves, and this one comes. */
  async enter(slice: OffloadSlice, pass: Pass): Promise<void> {
    this.#beginPass(pass);
    if (this.#current === slice) {
      return;
    }
    this.leave();
    this.#current = slice;
    const loaded = beginSliceRange(this.#context, 'backward_load', slice);
    await this.#awaitStores(this.#options.loadAheadBytes);
    await this.#context.scheduler.enter(slice, 'backward');
    loaded();
    this.#endRange = beginSliceRange(this.#context, 'backward_pass', slice);
  }

  #beginPass(pass: Pass): void {
    if (this.#pass === pass) {
      return;
    }
    if (!this.#context.isDry()) {
      this.#options.requireIdle();
    }
    this.#pass = pass;
    this.#context.scheduler.beginBackward();
    pass.onEnd(() => this.#endPass());
    pass.onFailure(() => this.#options.onFailure());
  }

  /** Sends the slice's gradients to the store and frees its parameters. */
  leave(): void {
    const slice = this.#current;
    if (slice === undefined) {
      return;
    }
    this.#context.note(slice);
    this.#current = undefined;
    this.#endRange();
    const dropped = beginSliceRange(this.#context, 'backward_drop', slice);
    for (const flat of slice.flats) {
      const stored = flat.flushGradient({ isDry: this.#context.isDry() });
      if (stored !== undefined) {
        this.#stores.set(stored, flat.flushBytes);
      }
      flat.full.keepWrites();
      flat.full.drop();
    }
    dropped();
  }

  /**
   * Records ranges around a run of a slice's layers. The range of its backward pauses while a
   * checkpoint runs the layers again.
   */
  async around(slice: OffloadSlice, run: () => Promise<unknown>): Promise<unknown> {
    const isAgain = this.#current === slice;
    if (isAgain) {
      this.#endRange();
    }
    const hasGrad = this.#context.device.isGradEnabled;
    const name = hasGrad ? 'forward_pass_with_enable_grad' : 'no_grad_forward_pass';
    const end = beginSliceRange(this.#context, name, slice);
    const output = await run();
    end();
    if (isAgain) {
      this.#endRange = beginSliceRange(this.#context, 'backward_pass', slice);
    }
    return output;
  }

  async #endPass(): Promise<void> {
    this.leave();
    this.#pass = undefined;
    this.#context.scheduler.endBackward();
    await this.#context.scheduler.settle();
    await this.#awaitStores(0);
    this.#options.onEnd();
  }

  /** Waits for the oldest gradients on their way until the rest takes at most `capBytes`. */
  async #awaitStores(capBytes: number): Promise<void> {
    let left = [...this.#stores.values()].reduce((sum, bytes) => sum + bytes, 0);
    for (const [stored, bytes] of this.#stores) {
      if (left <= capBytes) {
        return;
      }
      await stored;
      this.#stores.delete(stored);
      left -= bytes;
    }
  }

  /** Runs something with a backward of its own inside this one, which goes on afterwards. */
  async aside<T>(body: () => Promise<T>): Promise<T> {
    await this.#awaitStores(0); // those under way must not be forgotten
    const pass = this.#pass;
    try {
      return await body();
    } finally {
      this.#pass = pass;
    }
  }

  /**
   * Returns to rest after a failure. The gradients of this backward that the store has are
   * incomplete.
   */
  reset(): void {
    this.#pass = undefined;
    this.#current = undefined;
    this.#stores.clear();
  }
}
