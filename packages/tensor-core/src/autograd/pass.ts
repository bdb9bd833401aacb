// One backward: the leaves that it reaches, who takes their gradients, and what is to be done and
// awaited at its end or after its failure.

import type { Tensor } from '../tensor.js';

/** One backward, inner ones of checkpointed segments included. */
export interface Pass {
  /** Leaves that get a gradient in this backward, known before its first kernel. */
  readonly reached: ReadonlySet<Tensor>;
  /** Runs when all nodes and all promises handed to the engine are done, outermost pass only. */
  onEnd(callback: () => void | Promise<void>): void;
  /** Runs instead when the backward fails, awaited before its error is seen; to restore states. */
  onFailure(callback: (error: unknown) => void | Promise<void>): void;
}

/** Takes a leaf's gradients instead of `leaf.grad`: buckets, flat gradients. */
export interface GradSink {
  /**
   * Where an op may write a contribution, of the leaf's shape and dtype, in place of making a
   * tensor: accept then gets this very tensor. Undefined where it has to be added to others, or
   * converted.
   */
  target?(leaf: Tensor): Tensor | undefined;
  /** A contribution. Valid until this returns; copy, or retain its storage. */
  accept(leaf: Tensor, gradient: Tensor, pass: Pass): void;
  /**
   * The last contribution of this backward was accepted. A returned promise is awaited at the end.
   */
  final(leaf: Tensor, pass: Pass): void | Promise<void>;
  /**
   * Gradients of some of its leaves are being zeroed: forgets what it holds of them, in their
   * flat's `grad` too, where others' stay.
   */
  clear?(leaves: readonly Tensor[]): void;
  /** Whether backward has left a leaf a gradient that its flat has and nobody has cleared. */
  hasGradient?(leaf: Tensor): boolean;
  /**
   * A backward that reaches a leaf of this sink has failed, anywhere in its graph. Called once,
   * before what is in flight is waited for, so that ranks that wait for this one can be told.
   */
  failed?(error: unknown, pass: Pass): void;
}

/**
 * Called when a leaf's gradient is final in a backward; a returned promise is awaited at its end.
 */
export type FinalHook = (leaf: Tensor, pass: Pass) => void | Promise<void>;

/** What the engine knows of a backward while it runs. */
export class RunningPass implements Pass {
  readonly reached = new Set<Tensor>();
  readonly pending = new Map<Tensor, number>();
  readonly promises: Promise<void>[] = [];
  readonly callbacks: (() => void | Promise<void>)[] = [];
  readonly failureCallbacks: ((error: unknown) => void | Promise<void>)[] = [];
  failure: { readonly error: unknown } | undefined;

  onEnd(callback: () => void | Promise<void>): void {
    this.callbacks.push(callback);
  }

  onFailure(callback: (error: unknown) => void | Promise<void>): void {
    this.failureCallbacks.push(callback);
  }

  /** Keeps a promise without leaving its rejection unobserved meanwhile. */
  hold(promise: Promise<void>): void {
    this.promises.push(promise);
    promise.catch((error: unknown) => {
      this.failure ??= { error };
    });
  }

  expect(leaf: Tensor): void {
    this.reached.add(leaf);
    this.pending.set(leaf, (this.pending.get(leaf) ?? 0) + 1);
  }

  /** One expected gradient of `leaf` has come. */
  arrived(leaf: Tensor): void {
    const left = this.pending.get(leaf)! - 1;
    this.pending.set(leaf, left);
    if (left > 0) {
      return;
    }
    const sunk = leaf.gradSink?.final(leaf, this);
    if (sunk !== undefined) {
      this.hold(sunk);
    }
    const notified = leaf.device.notifyFinal(leaf, this);
    if (notified !== undefined) {
      this.hold(notified);
    }
  }
}

/** Waits for all promises and callbacks of a backward whose nodes have run. */
export async function settle(pass: RunningPass): Promise<void> {
  // A promise or callback may add further ones of either kind; promises come first.
  let numAwaited = 0;
  let numCalled = 0;
  for (;;) {
    if (numAwaited < pass.promises.length) {
      await pass.promises[numAwaited++];
    } else if (numCalled < pass.callbacks.length) {
      await pass.callbacks[numCalled++]!();
    } else {
      return;
    }
  }
}

/** Calls each reached sink once; the backward's error is the one to see, not what they throw. */
export function tellSinks(pass: RunningPass, error: unknown): void {
  for (const sink of new Set([...pass.reached].map(({ gradSink }) => gradSink))) {
    try {
      sink?.failed?.(error, pass);
    } catch {
      // The others must still be told.
    }
  }
}

/** Runs all failure callbacks; the backward's error is the one to see, not what they throw. */
export async function restoreAfter(pass: RunningPass, error: unknown): Promise<void> {
  // All begin before one is awaited, for one that waits for other ranks may wait for what another
  // tells.
  await Promise.allSettled(pass.failureCallbacks.map(async (callback) => callback(error)));
}
