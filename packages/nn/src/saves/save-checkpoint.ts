// Saves a plain module with its optimizer, and loads it again. What a wrapper has sharded or put
// into a store is saved by that wrapper's own package, but such saves load here too.

import {
  loadSave,
  type PieceReader,
  type PieceStore,
  requireJson,
  writeSave,
} from '@shardweave/checkpoint';
import type { Module } from '../module.js';
import { requireHere } from '../state-dict.js';
import type { CapturedModule } from './captured-module.js';
import type { AnyOptimizer } from './held-flats.js';
import { HeldModule } from './held-module.js';

/** Options of saving a module: what else goes into the save. */
export interface SaveCheckpointOptions {
  /** The optimizer whose state is saved too. Default none. */
  readonly optimizer?: AnyOptimizer;
  /** Anything else to find in the save again, such as the step. What is not JSON is refused. */
  readonly extra?: Readonly<Record<string, unknown>>;
  /**
   * Leaves frozen parameters out of the save, such as the base model beside which adapters are
   * trained. Default false.
   */
  readonly onlyTrained?: boolean;
}

/** Options of loading a save into a module. */
export interface LoadCheckpointOptions {
  /** The optimizer that gets the saved state and the saved options of its groups. */
  readonly optimizer?: AnyOptimizer;
  /** Whether missing and unexpected names are an error. Default true. */
  readonly strict?: boolean;
  /**
   * Whether frozen parameters keep their values, for a save that was made without them. Default
   * false.
   */
  readonly onlyTrained?: boolean;
}

/**
 * Saves parameters, buffers and, if asked, optimizer state, and replaces the save that is there. At
 * most 8 MiB are on the host at once. Where ranks hold the same values, one of them calls it.
 * @throws {NnConfigError} for a parameter that is sharded or rests in a store, and where a step or
 * load beside it changed one
 * @throws {CheckpointError} as writeSave
 */
export async function saveCheckpoint(
  module: Module,
  store: PieceStore,
  options: SaveCheckpointOptions = {},
): Promise<void> {
  const { extra = {} } = options;
  requireJson(extra, 'extra');
  const held = heldModule(module, options, 'saveCheckpoint');
  const checkVersions = held.noteVersions('saveCheckpoint');
  const pieces = async function* () {
    yield* held.pieces();
    checkVersions();
  };
  await writeSave(store, {
    pieces: pieces(),
    record: () => ({ optimizer: held.optimizerRecord(), extra }),
  });
}

/**
 * Captures what saveCheckpoint would write, for writePart to write. Forwards, backwards and steps
 * may follow at once and do not change what is saved: values stay on the device until they are
 * written, and a step of the optimizer waits for the flats that have not been read yet. Nothing
 * else may change parameters or state before that. Release the result after writePart.
 * @throws {NnConfigError} for a parameter that is sharded or rests in a store
 */
export async function captureCheckpoint(
  module: Module,
  options: Pick<SaveCheckpointOptions, 'optimizer' | 'onlyTrained'> = {},
): Promise<CapturedModule> {
  return heldModule(module, options, 'captureCheckpoint').capture();
}

/**
 * Loads a save of any strategy and any world size. Floats are converted to the dtypes that the
 * parameters have here. All pieces are checked before the first is written.
 * @returns `extra` as it was saved
 * @throws {CheckpointError} where there is no save, or one that is damaged or of another model;
 * nothing is loaded then
 */
export async function loadCheckpoint(
  module: Module,
  reader: PieceReader,
  options: LoadCheckpointOptions = {},
): Promise<Readonly<Record<string, unknown>>> {
  const { strict } = options;
  const held = heldModule(module, options, 'loadCheckpoint');
  return loadSave(reader, async (save) => {
    await held.check(save, { strict });
    await held.load(save);
    return save.extra;
  });
}

function heldModule(
  module: Module,
  { optimizer, onlyTrained }: Pick<LoadCheckpointOptions, 'optimizer' | 'onlyTrained'>,
  operation: string,
): HeldModule {
  const named = module.namedParameters();
  requireHere(named, operation);
  return new HeldModule({
    parameters: new Map(named.map(([name, tensor]) => [tensor, name])),
    buffers: module.namedBuffers(),
    optimizer,
    onlyTrained,
  });
}
