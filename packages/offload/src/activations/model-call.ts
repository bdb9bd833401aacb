// The state of one call of the model, kept apart because several forwards may come before a
// backward, and the storages that its values hold.

import type { HostBuffers } from '@shardweave/nn/flat';
import { type Storage, tensorsIn } from '@shardweave/tensor-core';
import { ParkedActivations } from './parked-activations.js';

export class ModelCall {
  readonly parked: ParkedActivations;
  /** The storages that its nodes have saved so far. */
  readonly saved = new Set<Storage>();
  readonly callers: ReadonlySet<Storage>;
  /** Whether its forward has not ended, so that more may be parked. */
  isRunning = true;

  /** @param callers the storages of what the caller gave, which stay where they are */
  constructor(
    callers: ReadonlySet<Storage>,
    options: { readonly hostBuffers: HostBuffers; readonly isDry: boolean },
  ) {
    this.callers = callers;
    this.parked = new ParkedActivations(options.hostBuffers, options);
  }

  mayPark(storage: Storage): boolean {
    return storage.tag === 'activation' && !this.callers.has(storage);
  }
}

export function storagesIn(value: unknown): Storage[] {
  return tensorsIn(value).map(({ storage }) => storage);
}

/** Ends the current scope's hold on those storages of `args` that are not in `kept`. */
export function endHolds(args: unknown, kept: ReadonlySet<Storage>): void {
  const seen = new Set(kept);
  for (const tensor of tensorsIn(args)) {
    if (seen.has(tensor.storage)) {
      continue;
    }
    seen.add(tensor.storage);
    tensor.keep().dispose();
  }
}
