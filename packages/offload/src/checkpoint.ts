// Writes an offloaded model and its optimizer into a save and reads them back: values pass between
// the model's store and the save by way of the host, and the device takes no part.

import {
  loadSave,
  type PieceReader,
  type PieceStore,
  requireJson,
  writeSave,
} from '@shardweave/checkpoint';
import { type CapturedModule, StateDictError } from '@shardweave/nn';
import { type AnyOptimizer, HeldModule } from '@shardweave/nn/flat';
import type { OffloadModel } from './offload-model.js';

/**
 * Options of saveCheckpoint: what is saved beside the parameters, and whether frozen ones are left
 * out.
 */
export interface SaveCheckpointOptions {
  /** The optimizer whose state is saved too. */
  readonly optimizer?: AnyOptimizer;
  /** JSON that is kept beside the save. What is not JSON is refused. */
  readonly extra?: Readonly<Record<string, unknown>>;
  /**
   * Frozen parameters are not saved, such as those of a base model whose adapters are trained.
   * Default false.
   */
  readonly onlyTrained?: boolean;
}

/**
 * Options of loadCheckpoint: what is loaded beside the parameters, and how strictly names must fit.
 */
export interface LoadCheckpointOptions {
  /** The optimizer that gets the saved state, and the saved options of its groups. */
  readonly optimizer?: AnyOptimizer;
  /** Refuse missing and unexpected names. Default true. */
  readonly strict?: boolean;
  /**
   * Frozen parameters keep their values, and the save is expected to have none of them. Default
   * false.
   */
  readonly onlyTrained?: boolean;
}

/**
 * Saves parameters, buffers and, if asked, optimizer state, in place of the save that is there. At
 * most 8 MiB of it and one layer's state are in the host's memory at once.
 * @throws {OffloadBusyError} while another call, a backward or a step has not ended
 * @throws {StateDictError} for parameters that are sharded
 * @throws {CheckpointError} as writeSave does
 */
export async function saveCheckpoint(
  model: OffloadModel,
  store: PieceStore,
  options: SaveCheckpointOptions = {},
): Promise<void> {
  const { extra = {} } = options;
  requireJson(extra, 'extra');
  await model.whileAtRest('saveCheckpoint', async () => {
    const held = heldModule(model, options, 'saveCheckpoint');
    const record = () => ({ optimizer: held.optimizerRecord(), extra });
    await writeSave(store, { pieces: held.pieces(), record });
  });
}

/**
 * Captures what saveCheckpoint would write, for writePart: calls and steps may follow at once, and
 * the capture does not see them. Values are pinned in the model's store, so a save in a directory
 * of the same device links their files and copies none. Release the capture after writePart.
 * @throws {NnConfigError} where the store can't pin values: host memory, and file systems without
 * hard links
 * @throws {OffloadBusyError} and {StateDictError} as saveCheckpoint does
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
 * Loads a save that any strategy wrote at any world size, and commits the model's store. All pieces
 * are checked before the first is written. The host holds one layer's parameter and its state at
 * once.
 * @returns `extra`, as it was saved
 * @throws {OffloadBusyError} and {StateDictError} as saveCheckpoint does
 * @throws {CheckpointError} where there is no save, or a damaged one, or that of another model:
 * nothing is loaded
 */
export async function loadCheckpoint(
  model: OffloadModel,
  reader: PieceReader,
  options: LoadCheckpointOptions = {},
): Promise<Readonly<Record<string, unknown>>> {
  const { strict } = options;
  const extra = await model.whileAtRest('loadCheckpoint', async () => {
    const held = heldModule(model, options, 'loadCheckpoint');
    return loadSave(reader, async (save) => {
      await held.check(save, { strict });
      await held.load(save);
      return save.extra;
    });
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
