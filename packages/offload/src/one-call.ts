// Lets one call of an offloaded model run at a time, and refuses those that come meanwhile.
//
// Note [one call at a time]
// A forward, a backward, a step and a load each rely on the parameters, their host buffers and the
// order of slices as the one before left them. A call that comes while another runs is recognized
// by the occupant of the parameters' homes. A forward inside a backward is recognized by the rule
// that the engine is running: if that is not one of the slices' own, the forward belongs to a
// checkpoint around the model, and is allowed.

import { flatHomeOf } from '@shardweave/nn/flat';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { OffloadBusyError } from './errors.js';

export class OneCall {
  /** The nodes that made the slices' outputs. */
  readonly nodes = new WeakSet<object>();
  readonly #device: Device;
  readonly #resting: readonly Tensor[];

  /**
   * @param resting flat parameters with a home that the parameters are in, those of sharded modules
   * inside included
   */
  constructor(device: Device, resting: readonly Tensor[]) {
    this.#device = device;
    this.#resting = resting;
  }

  /** Runs `body` unless something else is under way. No scope is opened before that is known. */
  async alone<T>(call: string, name: string, body: () => Promise<T>): Promise<T> {
    this.requireIdle(call);
    const device = this.#device;
    const rule = device.autograd.ruleInProgress;
    if (device.isInBackward && (rule === undefined || this.nodes.has(rule))) {
      throw new OffloadBusyError(call, 'backward');
    }
    const ends = this.#resting.map((flat) => flatHomeOf(flat)!.occupy(name));
    try {
      for (const steps of new Set(this.#resting.map((flat) => flatHomeOf(flat)!.steps))) {
        await steps.rest(); // a step in which a store failed is finished before anything is read
      }
      return await body();
    } finally {
      for (const end of ends) {
        end();
      }
    }
  }

  /** @throws {OffloadBusyError} while something else has not ended */
  requireIdle(call: string): void {
    for (const flat of this.#resting) {
      const { occupant } = flatHomeOf(flat)!;
      if (occupant !== undefined) {
        throw new OffloadBusyError(call, occupant);
      }
    }
  }
}
