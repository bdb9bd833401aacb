// The state of one backward pass: the leaves that it reaches, the sinks that take their gradients,
// and the callbacks and promises that belong to its end or its failure.

import type { Tensor } from '../tensor.js';
import type { Autograd } from './autograd.js';

/** One backward pass, including the inner ones of checkpointed segments. */
export interface Pass {
  /** The leaves that this backward reaches; they are known before its first kernel. */
  readonly reached: ReadonlySet<Tensor>;
  /**
   * Registers a callback for the end of the outermost backward, when all nodes have run and all
   * promises handed to the engine are fulfilled. It is awaited.
   */
  onEnd(callback: () => void | Promise<void>): void;
  /**
   * Registers a callback that runs, to restore state, if the backward fails. It is awaited before
   * the caller sees the error.
   */
  onFailure(callback: (error: unknown) => void | Promise<void>): void;
}

/** Receives a leaf's gradients in place of `leaf.grad`; buckets and flat gradients are sinks. */
export interface GradSink {
  /**
   * The tensor, of the leaf's shape and dtype, into which an op may write a contribution directly;
   * `accept` then gets this very tensor. Undefined where a contribution has to be added to others
   * or converted to another dtype.
   */
  target?(leaf: Tensor): Tensor | undefined;
  /**
   * Takes one contribution. The gradient is valid only until this returns: the sink copies it, or
   * retains its storage.
   */
  accept(leaf: Tensor, gradient: Tensor, pass: Pass): void;
  /**
   * Called when the last contribution of this backward has arrived. A returned promise is awaited
   * at the end of the backward.
   */
  final(leaf: Tensor, pass: Pass): void | Promise<void>;
  /**
   * Called when the gradients of some of its leaves are zeroed. The sink forgets what it holds for
   * them, also within the flat gradient that they share with leaves whose gradients stay.
   */
  clear?(leaves: readonly Tensor[]): void;
  /** Whether the sink's flat holds a gradient of this leaf that nobody has cleared since. */
  hasGradient?(leaf: Tensor): boolean;
  /**
   * Called once when a backward that reaches a leaf of this sink has failed, anywhere in its graph.
   * The call comes before work in flight is awaited, so that the sink can tell ranks which wait for
   * this one.
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

  /**
   * Keeps a promise to be awaited at the end. Its rejection is observed at once, since Node reports
   * a rejection that nobody handles, and it stops the walk before the next node.
   */
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

  /** Counts one expected gradient of `leaf` as arrived, and announces the last one. */
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
    const notified = leaf.device.autograd.notifyFinal(leaf, this);
    if (notified !== undefined) {
      this.hold(notified);
    }
  }
}

/** Waits for all promises and callbacks of a backward whose nodes have run. */
export async function settle(pass: RunningPass, autograd: Autograd): Promise<void> {
  // A promise or callback may add further ones of either kind; promises come first.
  let numAwaited = 0;
  let numCalled = 0;
  for (;;) {
    if (numAwaited < pass.promises.length) {
      await pass.promises[numAwaited++];
    } else if (numCalled < pass.callbacks.length) {
      await autograd.callHook(pass.callbacks[numCalled++]!);
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
      // An error of one sink must not keep the others from being told.
    }
  }
}

/** Runs all failure callbacks; the backward's error is the one to see, not what they throw. */
export async function restoreAfter(pass: RunningPass, error: unknown): Promise<void> {
  // All callbacks are started before any is awaited: one may wait for other ranks to answer what
  // another callback sends.
  await Promise.allSettled(pass.failureCallbacks.map(async (callback) => callback(error)));
}
