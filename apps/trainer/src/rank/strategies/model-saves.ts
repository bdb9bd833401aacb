// How a rank's model comes into saves and out of them, the same under every strategy.

import { hash } from 'node:crypto';
import type { PieceReader, PieceStore } from '@shardweave/checkpoint';
import { PeerFailedError } from '@shardweave/collectives';
import {
  type CapturedModule,
  captureCheckpoint,
  hashModel,
  type LazyTensor,
  lazyStateDict,
  loadCheckpoint,
  saveCheckpoint,
} from '@shardweave/nn';
import type { TaskStrategy } from './strategy.js';

/** The part of a save that is loaded. */
export interface LoadedParts {
  /** Whether the save has no optimizer state, so that the run's own stays as it is. */
  readonly isWeightsAlone: boolean;
}

/**
 * How a save is written. State on the device is written beside steps, which wait where they would
 * change it first, and state on disk is pinned there. Other state is written before the next step.
 */
export type Saving =
  | {
      /** This rank's part as it is now. Collective. */
      capture(): Promise<CapturedModule>;
    }
  | {
      /**
       * Writes and publishes the parts of all ranks, a little at a time, with `extra` beside them.
       * Collective.
       */
      save(store: PieceStore, extra: Readonly<Record<string, unknown>>): Promise<void>;
    };

/** How this rank's part of the weights and optimizer state is saved. */
export function savingOf(strategy: TaskStrategy): Saving {
  const { module, optimizer, isSavedBeside, onlyTrained } = strategy;
  return isSavedBeside
    ? { capture: () => captureCheckpoint(module, { optimizer, onlyTrained }) }
    : { save: (store, extra) => saveCheckpoint(module, store, { optimizer, extra, onlyTrained }) };
}

/**
 * The SHA-256 of what a save of the run would hold, the same for every strategy and number of
 * ranks. Collective.
 */
export function hashOf({ module, optimizer, onlyTrained }: TaskStrategy): Promise<string> {
  const sha256 = (bytes: Uint8Array) => hash('sha256', bytes, 'buffer');
  return hashModel(module, { optimizer, onlyTrained, sha256 });
}

/** Loads a save of any strategy on any number of ranks, or only its weights. Collective. */
export function loadParts(
  { module, optimizer, onlyTrained }: TaskStrategy,
  reader: PieceReader,
  { isWeightsAlone }: LoadedParts,
): Promise<unknown> {
  return loadCheckpoint(
    module,
    reader,
    isWeightsAlone ? { onlyTrained } : { optimizer, onlyTrained },
  );
}

/**
 * The parameters that are saved, for rank 0, gathered on the host, or read from where they rest
 * when they are asked for; empty for the other ranks. Collective.
 */
export function trainedState({
  module,
  onlyTrained,
}: TaskStrategy): Promise<Map<string, LazyTensor>> {
  return lazyStateDict(module, { stateDictOnRank0Only: true, onlyTrained });
}

/** Whether this rank was only told of the failure of another one. */
export function isOfAnotherRank(error: unknown): error is PeerFailedError {
  return error instanceof PeerFailedError;
}
