// What belongs to one call of the model, for two forwards may come before a backward; and which
// storages its values hold.

import type { HostBuffers } from '@shardweave/nn/flat';
import { type Storage, tensorsIn } from '@shardweave/tensor-core';
import { ParkedActivations } from './parked-activations.js';

export class ModelCall {
  readonly parked: ParkedActivations;
  /** What its nodes have saved so far. */
  readonly saved = new Set<Storage>();
  readonly callers: ReadonlySet<Storage>;
  /** Its forward has not ended, so more may be parked. */
  isRunning = true;

  /** @param callers what the caller gave: it stays where it is */
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

/** Ends the current scope's hold on arguments that only it needs. */
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
