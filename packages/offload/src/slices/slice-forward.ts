// The forward of one slice: one micro-batch after another, with what backward will need of each
// parked on the host.

import type { Pass } from '@shardweave/tensor-core';
import { type Storage, tensorsIn } from '@shardweave/tensor-core';
import { endHolds, type ModelCall, storagesIn } from '../activations/model-call.js';
import type { LayerCalls } from './layer-calls.js';
import type { MicroBatch } from './micro-batches.js';
import type { OffloadSlice } from './offload-slice.js';
import { beginSliceRange, type SliceContext } from './slice-context.js';

export interface SliceForwardOptions {
  /** Receives the nodes that made the slices' outputs. */
  readonly nodes: WeakSet<object>;
  readonly layerCalls: LayerCalls;
  /** Called before a slice's nodes run backward. */
  enterBackward(slice: OffloadSlice, pass: Pass): Promise<void>;
}

export class SliceForward {
  readonly #context: SliceContext;
  readonly #options: SliceForwardOptions;

  constructor(context: SliceContext, options: SliceForwardOptions) {
    this.#context = context;
    this.#options = options;
  }

  /** Runs all micro-batches through one slice, and returns them as the next slice's input. */
  async run(
    slice: OffloadSlice,
    batches: readonly MicroBatch[],
    call: ModelCall,
  ): Promise<MicroBatch[]> {
    const { device } = this.#context;
    const loaded = beginSliceRange(this.#context, 'forward_load', slice);
    await this.#context.scheduler.enter(slice, 'forward');
    loaded();
    const before = device.random.state();
    const outputs: MicroBatch[] = [];
    let isReached = false;
    const parted = batches.length > 1 ? slice.batchNorms.map((norm) => norm.beginBatch()) : [];
    try {
      for (const batch of batches) {
        const { args, firstRow } = batch;
        for (const part of parted) {
          part.beginPart();
        }
        // Every micro-batch draws the random numbers that the whole batch would draw for its rows.
        device.random.restore({ ...before, rowOffset: before.rowOffset + firstRow });
        const { output, numNodes } = await this.#runMicroBatch(slice, batch, call);
        isReached ||= numNodes > 0;
        outputs.push({ args, previous: output, firstRow });
        if (batches.length > 1 && device.isGradEnabled) {
          call.parked.park(storagesIn(output).filter((storage) => call.mayPark(storage)));
        }
      }
      for (const batch of parted) {
        batch.end();
      }
    } finally {
      for (const batch of parted) {
        batch.abandon();
      }
    }
    device.random.restore({ ...device.random.state(), rowOffset: before.rowOffset });
    this.#context.note(slice);
    this.#context.scheduler.leave(slice, isReached ? 'recorded' : 'unreached');
    const dropped = beginSliceRange(this.#context, 'forward_drop', slice);
    for (const flat of slice.flats) {
      flat.full.keepWrites();
      flat.full.drop();
    }
    dropped();
    return outputs;
  }

  async #runMicroBatch(
    slice: OffloadSlice,
    { args, previous }: MicroBatch,
    call: ModelCall,
  ): Promise<{ readonly output: unknown; readonly numNodes: number }> {
    const { device } = this.#context;
    const { layerCalls, nodes } = this.#options;
    await call.parked.unpark(storagesIn(previous));
    const saved = new Set<Storage>();
    const remove = device.autograd.watchSaved((storage) => saved.add(storage));
    let output: unknown;
    try {
      output = await slice.run.call(previous, args);
    } finally {
      remove();
    }
    const given = [previous, ...layerCalls.tensorsFrom(slice.start, args)];
    const later = new Set(storagesIn([output, ...layerCalls.tensorsFrom(slice.end, args)]));
    endHolds(given, new Set([...call.callers, ...later]));
    if (!device.isGradEnabled) {
      return { output, numNodes: 0 };
    }
    const parkable = [...saved].filter((storage) => call.mayPark(storage));
    for (const storage of parkable) {
      call.saved.add(storage);
    }
    // What later slices are about to use stays; arguments that an earlier slice saved go.
    const idle = [...parkable, ...storagesIn(given)].filter(
      (storage) => call.saved.has(storage) && !later.has(storage),
    );
    call.parked.park(idle);
    // A tensor that only passes through belongs to the slice that made it.
    const made = tensorsIn(output).filter((tensor) => !tensorsIn(given).includes(tensor));
    for (const { origin } of made) {
      if (origin !== undefined) {
        nodes.add(origin.node);
      }
    }
    const numNodes = device.beforeGradientOf(made, async (pass) => {
      await this.#options.enterBackward(slice, pass);
      await call.parked.unpark(parkable);
    });
    return { output, numNodes };
  }
}
