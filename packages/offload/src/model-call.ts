// What belongs to one call of the model, for two forwards may come before a backward; and which
// storages its values hold.

import { type Storage, tensorsIn } from '@shardweave/tensor-core';
import { ParkedActivations } from './parked-activations.js';

export class ModelCall {
  readonly parked = new ParkedActivations();
  /** What its nodes have saved so far. */
  readonly saved = new Set<Storage>();
  readonly callers: ReadonlySet<Storage>;

  /** @param callers what the caller gave: it stays where it is */
  constructor(callers: ReadonlySet<Storage>) {
    this.callers = callers;
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
    if (seen.has(tensor.storage)) continue;
    seen.add(tensor.storage);
    tensor.keep().dispose();
  }
}
