// Calls of an offloaded model take turns, and those that come beside another are refused.
//
// Note [one call at a time]
// A forward, a backward, a step and a load each find the parameters, their host buffers and the
// order of slices as the one before left them. They are told apart from calls that nobody awaited
// by who is in the parameters' homes, and a forward inside a backward by what the engine runs: it
// belongs to a checkpoint around the model if a rule is in progress that is not one of the slices'
// own.

import { flatHomeOf } from '@shardweave/nn/flat';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { OffloadBusyError } from './errors.js';

export class OneCall {
  /** What made the slices' outputs. */
  readonly nodes = new WeakSet<object>();
  readonly #device: Device;
  readonly #resting: readonly Tensor[];

  /**
   * @param resting flats with a home that the parameters are in, those of sharded modules inside
   * too
   */
  constructor(device: Device, resting: readonly Tensor[]) {
    this.#device = device;
    this.#resting = resting;
  }

  /** Runs `body` unless something else is under way. No scope is open before that is known. */
  async alone<T>(call: string, name: string, body: () => Promise<T>): Promise<T> {
    this.requireRest(call);
    const device = this.#device;
    const rule = device.ruleInProgress;
    if (device.isInBackward && (rule === undefined || this.nodes.has(rule))) {
      throw new OffloadBusyError(call, 'backward');
    }
    const ends = this.#resting.map((flat) => flatHomeOf(flat)!.occupy(name));
    try {
      for (const steps of new Set(this.#resting.map((flat) => flatHomeOf(flat)!.steps))) {
        await steps.rest(); // one that a store failed in is finished before anything is read
      }
      return await body();
    } finally {
      for (const end of ends) {
        end();
      }
    }
  }

  /** @throws {OffloadBusyError} beside something that has not ended */
  requireRest(call: string): void {
    for (const flat of this.#resting) {
      const { occupant } = flatHomeOf(flat)!;
      if (occupant !== undefined) {
        throw new OffloadBusyError(call, occupant);
      }
    }
  }
}
