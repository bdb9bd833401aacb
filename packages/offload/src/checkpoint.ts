// An offloaded model, with its optimizer, into a save and back: values pass between the two stores
// by way of the host, and the device isn't asked.

import { openSave, type PieceReader, type PieceStore, writeSave } from '@shardweave/checkpoint';
import { type CapturedModule, StateDictError } from '@shardweave/nn';
import { type AnyOptimizer, HeldModule } from '@shardweave/nn/flat';
import type { OffloadModel } from './offload-model.js';

/** What is saved beside the parameters, and whether frozen ones are left out. */
export interface SaveCheckpointOptions {
  /** Its state is saved too. */
  readonly optimizer?: AnyOptimizer;
  /** Kept beside it: JSON. */
  readonly extra?: Readonly<Record<string, unknown>>;
  /**
   * Frozen parameters are not saved: a base model that its adapters are trained beside. Default
   * false.
   */
  readonly onlyTrained?: boolean;
}

/** What is loaded beside the parameters, and how strictly names must fit. */
export interface LoadCheckpointOptions {
  /** Gets the state that was saved, and its groups' options. */
  readonly optimizer?: AnyOptimizer;
  /** Refuse missing and unexpected names. Default true. */
  readonly strict?: boolean;
  /** Frozen parameters keep their values, and the save has none of them. Default false. */
  readonly onlyTrained?: boolean;
}

/**
 * Saves parameters, buffers and, if asked, optimizer state, in place of the save that is there. At
 * once on the host are 8 MiB of it and one layer's state.
 * @throws {OffloadBusyError} beside another call, a backward or a step that has not ended
 * @throws {StateDictError} for parameters that are sharded
 * @throws {CheckpointError} as writeSave
 */
export async function saveCheckpoint(
  model: OffloadModel,
  store: PieceStore,
  options: SaveCheckpointOptions = {},
): Promise<void> {
  const { extra = {} } = options;
  await model.whileAtRest('saveCheckpoint', async () => {
    const held = heldModule(model, options, 'saveCheckpoint');
    const record = () => ({ optimizer: held.optimizerRecord(), extra });
    await writeSave(store, { pieces: held.pieces(), record });
  });
}

/**
 * What saveCheckpoint would write, for writePart: calls and steps may follow at once, and are not
 * in it. Values are pinned in the model's store: a save in a directory of the same device takes
 * their files and copies none. Release it behind writePart.
 * @throws {NnConfigError} where the store can't pin values: host memory, and file systems without
 * hard links
 * @throws {OffloadBusyError} and {StateDictError} as saveCheckpoint
 */
export async function captureCheckpoint(
  model: OffloadModel,
  options: Pick<SaveCheckpointOptions, 'optimizer' | 'onlyTrained'> = {},
): Promise<CapturedModule> {
  return model.whileAtRest('captureCheckpoint', () =>
    heldModule(model, options, 'captureCheckpoint').capture(),
  );
}

/**
 * Loads what any strategy saved, at any world size, and commits the model's store. All pieces are
 * checked before the first is written. At once on the host are one layer's parameter and its state.
 * @returns extra, as it was saved
 * @throws {OffloadBusyError} and {StateDictError} as saveCheckpoint
 * @throws {CheckpointError} for no save, a damaged one, or another model's: nothing
 * is loaded
 */
export async function loadCheckpoint(
  model: OffloadModel,
  reader: PieceReader,
  options: LoadCheckpointOptions = {},
): Promise<Readonly<Record<string, unknown>>> {
  const { strict } = options;
  const extra = await model.whileAtRest('loadCheckpoint', async () => {
    const held = heldModule(model, options, 'loadCheckpoint');
    const save = await openSave(reader);
    await held.check(save, { strict });
    await held.load(save);
    return save.extra;
  });
  await model.commit();
  return extra;
}

function heldModule(
  model: OffloadModel,
  { optimizer, onlyTrained }: Pick<LoadCheckpointOptions, 'optimizer' | 'onlyTrained'>,
  operation: string,
): HeldModule {
  const named = model.namedParameters();
  const flats = new Set(model.flats.map(({ flat }) => flat));
  const foreign = named.find(([, { piece }]) => piece === undefined || !flats.has(piece.flat));
  if (foreign !== undefined) {
    throw new StateDictError(
      `${operation}: expected parameters that rest in the model's store, got '${foreign[0]}', which is sharded. Save the sharded modules.`,
    );
  }
  const parameters = new Map(named.map(([name, tensor]) => [tensor, name]));
  return new HeldModule({ parameters, buffers: model.namedBuffers(), optimizer, onlyTrained });
}
