// Saves a model with its optimizer, and loads it again, whatever wraps the model: every process
// writes and reads the pieces that it has, so nothing is ever whole on one rank, and a save loads
// at any world size and under any wrapper.

import {
  loadSave,
  type PieceReader,
  type PieceStore,
  type Save,
  saveOverRanks,
  writePart,
} from '@shardweave/checkpoint';
import { checkOptions, FLAG, OBJECT, type OptionRules, optional } from '../check-options.js';
import type { CapturedModule } from './captured-module.js';
import { type AnyOptimizer, OPTIMIZER } from './held-flats.js';
import type { HeldModule } from './held-module.js';
import { type ModelAtRest, type Models, whileAtRest } from './model-at-rest.js';
import { byPieces, savedModule, sharingOf } from './saved-module.js';

/** Options of saveCheckpoint: what else goes into the save. */
export interface SaveCheckpointOptions {
  /** The optimizer whose state is saved too. Default none. */
  readonly optimizer?: AnyOptimizer;
  /**
   * Anything else to find in the save again, such as the step; the first rank's is taken. What is
   * not JSON is refused.
   */
  readonly extra?: Readonly<Record<string, unknown>>;
  /**
   * Leaves frozen parameters out of the save, such as the base model beside which adapters are
   * trained. Default false.
   */
  readonly onlyTrained?: boolean;
}

/** Options of loadCheckpoint: what is loaded beside the parameters, and how strictly. */
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

const SAVED_RULES = { optimizer: optional(OPTIMIZER), onlyTrained: optional(FLAG) };
const SAVE_RULES: OptionRules<SaveCheckpointOptions> = {
  ...SAVED_RULES,
  extra: optional(OBJECT),
};
const LOAD_RULES: OptionRules<LoadCheckpointOptions> = {
  ...SAVED_RULES,
  strict: optional(FLAG),
};

/**
 * Saves parameters, buffers and, if asked, optimizer state, in place of the save that is there. All
 * ranks that hold the model call it: each writes the pieces that it has, and the first one what all
 * have, such as buffers. At most 8 MiB of it are on a host at once; where state rests in a store,
 * one flat parameter's state besides.
 * @param store the store of this rank. The first rank's must show the save that is there already.
 * Ranks may share a directory or not, because their files have different names
 * @throws {NnConfigError} where only a part of the model is given, whose values rest with a wrapper
 * around it, and where a step or load beside it changed a parameter
 * @throws {CheckpointError} as publication does, and whatever a store throws, on the rank where it
 * happens; other ranks throw what their wrapper does, naming that rank. The earlier save stays
 * @throws what the wrapper does during a call that has not ended
 */
export async function saveCheckpoint(
  models: Models,
  store: PieceStore,
  options: SaveCheckpointOptions = {},
): Promise<void> {
  const call = byPieces('saveCheckpoint');
  checkOptions(call.operation, options, SAVE_RULES);
  const { extra = {} } = options;
  await whileAtRest(models, call, async (held) => {
    const { ranks } = held;
    const { rank, worldSize, isFirst, isWriting } = ranks;
    let saved: HeldModule | undefined;
    const pieces = async function* () {
      yield* saved!.pieces(sharingOf(held));
      held.requireUnchanged();
    };
    await saveOverRanks(store, {
      ...{ rank, worldSize, extra, isPublisher: isFirst },
      agree: async (own) => {
        const text = await ranks.agree(call.operation, own);
        return text === undefined ? [] : ranks.exchange(call.operation, text);
      },
      isCalledOff: (error) => ranks.isOfAnother(error),
      begin: () => {
        saved = savedModule(held, options, { hasBuffers: isFirst });
      },
      write: (part) => (isWriting ? writePart(store, pieces(), part) : passOver(pieces())),
      optimizer: () => saved!.optimizerRecord(),
    });
  });
}

/**
 * Captures what saveCheckpoint would write of this process, for writePart to write: forwards,
 * backwards and steps may follow at once, and the capture does not see them. All ranks that hold
 * the model call it. Values stay on the device until they are written, and a step of the optimizer
 * waits for the flats that have not been read yet; nothing else may change parameters or state
 * meanwhile. What rests in a store on disk is pinned there, so a save in a directory of the same
 * device links the files and copies none. Release the capture after writePart.
 * @returns the pieces, and the steps of those parameters that have elements here; whoever publishes
 * the save joins the steps of all ranks
 * @throws {NnConfigError} where values rest off the device in a store that can't pin them
 * @throws what saveCheckpoint throws
 */
export async function captureCheckpoint(
  models: Models,
  options: Pick<SaveCheckpointOptions, 'optimizer' | 'onlyTrained'> = {},
): Promise<CapturedModule> {
  const call = byPieces('captureCheckpoint');
  checkOptions(call.operation, options, SAVED_RULES);
  return whileAtRest(models, call, async (held) => {
    const { ranks } = held;
    const saved = await ranks.agree(call.operation, async () =>
      savedModule(held, options, { hasBuffers: ranks.isFirst }),
    );
    let captured: CapturedModule | undefined;
    try {
      return await ranks.agree(call.operation, async () => {
        captured = await saved.capture(sharingOf(held));
        return captured;
      });
    } catch (error) {
      await captured?.release().catch(() => undefined); // another rank failed
      throw error;
    }
  });
}

/**
 * Loads a save that was made under any wrapper and at any world size. All ranks that hold the model
 * call it. Floats are converted to the dtypes in which parameters rest here. Every rank checks all
 * pieces that it is going to read before any rank writes one. The host holds 1 MiB of a file at
 * once; where state rests in a store, one flat parameter and its state besides. The device needs no
 * more memory than after the load. What rests in a store is committed.
 * @param reader the reader of this rank: it has to find the index, and the files of the pieces that
 * this rank needs
 * @returns `extra` as it was saved
 * @throws {CheckpointError} where there is no save, or one that is damaged or of another model, on
 * the rank where it is seen; other ranks throw what their wrapper does, naming that rank. Nothing
 * is then loaded on any rank. A rank that fails later leaves a mixture: load again
 * @throws what saveCheckpoint throws
 */
export async function loadCheckpoint(
  models: Models,
  reader: PieceReader,
  options: LoadCheckpointOptions = {},
): Promise<Readonly<Record<string, unknown>>> {
  const call = { ...byPieces('loadCheckpoint'), isLoad: true };
  checkOptions(call.operation, options, LOAD_RULES);
  const { strict } = options;
  return whileAtRest(models, call, async (held) => {
    const { ranks, parts } = held;
    let saved: HeldModule | undefined;
    let save: Save | undefined;
    await ranks.agreeOnText(call.operation, async () => {
      saved = savedModule(held, options, { hasBuffers: true });
      // Ids are compared, because ranks may have read different saves.
      return loadSave(reader, async (opened) => {
        await saved!.check(opened, { strict, isForeign: isOfOthers(held) });
        save = opened;
        return opened.id;
      });
    });
    await ranks.agree(call.operation, async () => {
      try {
        await saved!.load(save!);
      } finally {
        for (const part of parts) {
          part.dropCopies();
        }
      }
    });
    return save!.extra;
  });
}

/** Whether a saved name is that of a parameter which other ranks have under another suffix. */
function isOfOthers({ parts, names }: ModelAtRest): (name: string) => boolean {
  const own = new Set(
    parts.flatMap(({ parameters, suffix }) =>
      suffix === '' ? [] : parameters.map((tensor) => names.get(tensor)),
    ),
  );
  return (name) => own.has(/^(.+)@\d+$/.exec(name)?.[1]);
}

/** Takes part in the agreements of a save that another process writes. */
async function passOver(pieces: AsyncIterable<unknown>): Promise<undefined> {
  for await (const _ of pieces) {
    // Nothing is written here, because another process has the piece.
  }
}
