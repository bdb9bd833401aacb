// Writes a sharded module into a save and reads it back. Every rank writes and reads only the
// pieces that it owns, so nothing is ever whole on one rank, and a save loads at any world size and
// under any strategy.

import {
  loadSave,
  type PieceReader,
  type PieceStore,
  type Save,
  saveOverRanks,
  writePart,
} from '@shardweave/checkpoint';
import { exchangeTexts } from '@shardweave/collectives';
import type { CapturedModule } from '@shardweave/nn';
import { type AnyOptimizer, type FlatProgress, HeldModule } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import { FsdpRankFailedError } from '../errors.js';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { exchangeCall } from '../ranks/call-identity.js';
import { agree, agreeOnText, share } from '../tree/agree.js';
import { collectiveCall, noteShards } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { agreedProgress } from './agreed-progress.js';
import { isOneGroups, type KeyedUnit, keyedUnits } from './keyed-units.js';
import { namesFor } from './optimizer-names.js';

/**
 * Options of saveCheckpoint: what is saved beside the parameters, and whether frozen ones are left
 * out.
 */
export interface SaveCheckpointOptions {
  /** The optimizer whose state is saved too. */
  readonly optimizer?: AnyOptimizer;
  /** JSON that is kept beside the save; the first rank's is taken. What is not JSON is refused. */
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
 * Saves parameters and, if asked, optimizer state as each rank holds them, and the first rank's
 * buffers, in place of the save that is there. Collective. At most 8 MiB of it are in a host's
 * memory at once; where state rests in a store, one flat parameter's state besides. With several
 * replicas the first one writes.
 * @param store the store of this rank. The first rank's must show the save that is there already.
 * Ranks may share a directory or not, because their files have different names
 * @throws {FsdpStateError} unless the instance is idle
 * @throws {CheckpointError} as publication does, and whatever a store throws, on the rank where it
 * happens; the other ranks throw {FsdpRankFailedError}, which names that rank. The earlier save
 * stays
 */
export async function saveCheckpoint(
  fsdp: FullyShardedDataParallel,
  store: PieceStore,
  options: SaveCheckpointOptions = {},
): Promise<void> {
  const call = { operation: 'saveCheckpoint', states: ['idle'] } as const;
  const root = instanceOf(fsdp);
  await collectiveCall(root, call, () => writeShards(root, store, options));
}

async function writeShards(
  root: Instance,
  store: PieceStore,
  { optimizer, onlyTrained, extra = {} }: SaveCheckpointOptions,
): Promise<void> {
  const { processGroup, isFirstRank } = root;
  const { rank, worldSize } = processGroup;
  const operation = 'saveCheckpoint';
  const checkShards = noteShards(root, operation);
  const units = await keyedUnits(root, { operation });
  let held: HeldModule | undefined;
  const pieces = async function* () {
    yield* held!.pieces(agreementsOf(root, units, operation));
    checkShards();
  };
  await saveOverRanks(store, {
    ...{ rank, worldSize, extra, isPublisher: isFirstRank },
    agree: async (writeText) => {
      const text = await agree(root, operation, writeText);
      return text === undefined ? [] : exchangeTexts(processGroup, text, exchangeCall(operation));
    },
    isCalledOff: (error) => error instanceof FsdpRankFailedError,
    begin: () => {
      held = heldBy(root, units, { optimizer, onlyTrained, holdsBuffers: isFirstRank });
    },
    write: (part) => (root.isFirstReplica ? writePart(store, pieces(), part) : passOver(pieces())),
    optimizer: () => held!.optimizerRecord(),
  });
}

/**
 * Captures what saveCheckpoint would write on this rank, for writePart: forwards, backwards and
 * steps may follow at once, and the capture does not see them. Collective. Shards stay on the
 * device until they are written, and a step of the optimizer waits for those that are still to be
 * read; nothing else may change parameters or state meanwhile. What rests in a store on disk is
 * pinned there, so a save in a directory of the same device links the files and copies none.
 * Release the capture after writePart. A rank outside the first replica gets no pieces.
 * @returns the pieces, and the steps of those parameters that have elements on this rank; whoever
 * publishes the save joins the steps of all ranks
 * @throws {FsdpStateError} unless the instance is idle
 * @throws {NnConfigError} where shards or gradients rest off the device in a store that can't pin
 * them
 * @throws {FsdpRankFailedError} where another rank fails
 */
export async function captureCheckpoint(
  fsdp: FullyShardedDataParallel,
  { optimizer, onlyTrained }: Pick<SaveCheckpointOptions, 'optimizer' | 'onlyTrained'> = {},
): Promise<CapturedModule> {
  const operation = 'captureCheckpoint';
  const root = instanceOf(fsdp);
  return collectiveCall(root, { operation, states: ['idle'] }, async () => {
    const units = await keyedUnits(root, { operation });
    const held = await agree(root, operation, async () =>
      heldBy(root, units, { optimizer, onlyTrained, holdsBuffers: root.isFirstRank }),
    );
    let captured: CapturedModule | undefined;
    try {
      return await agree(root, operation, async () => {
        const agreements = agreementsOf(root, units, operation);
        captured = await held.capture(
          root.isFirstReplica ? agreements : { ...agreements, isWriting: () => false },
        );
        return captured;
      });
    } catch (error) {
      await captured?.release().catch(() => undefined); // another rank failed
      throw error;
    }
  });
}

/**
 * Loads a save that any strategy wrote at any world size. Collective. Floats are converted to the
 * dtype that parameters have here. Every rank checks all pieces that it is going to read before any
 * rank writes one. The host holds 1 MiB of a file at once; where state rests in a store, one flat
 * parameter and its state besides. The device needs no more memory than after the load.
 * @param reader the reader of this rank: it has to find the index, and the files of this rank's
 * pieces
 * @returns `extra`, as it was saved
 * @throws {CheckpointError} where there is no save, or a damaged one, or that of another model, on
 * the rank where it is seen; the other ranks throw {FsdpRankFailedError}, which names that rank.
 * Nothing is then loaded on any rank. A rank that fails later leaves a mixture: load again
 * @throws {FsdpStateError} unless the instance is idle
 */
export async function loadCheckpoint(
  fsdp: FullyShardedDataParallel,
  reader: PieceReader,
  options: LoadCheckpointOptions = {},
): Promise<Readonly<Record<string, unknown>>> {
  const call = { operation: 'loadCheckpoint', states: ['idle'] } as const;
  const root = instanceOf(fsdp);
  return collectiveCall(root, call, () => readShards(root, reader, options));
}

async function readShards(
  root: Instance,
  reader: PieceReader,
  { optimizer, onlyTrained, strict }: LoadCheckpointOptions,
): Promise<Readonly<Record<string, unknown>>> {
  const operation = 'loadCheckpoint';
  const units = await keyedUnits(root, { operation });
  let held: HeldModule | undefined;
  let save: Save | undefined;
  await agreeOnText(root, operation, async () => {
    held = heldBy(root, units, { optimizer, onlyTrained, holdsBuffers: true });
    // Ids are compared, because ranks may have read different saves.
    return loadSave(reader, async (opened) => {
      await held!.check(opened, { strict, isForeign: isOneGroups });
      save = opened;
      return opened.id;
    });
  });
  await agree(root, operation, async () => {
    try {
      await held!.load(save!);
    } finally {
      for (const { unit } of units) {
        unit.drop();
      }
    }
  });
  return save!.extra;
}

function heldBy(
  root: Instance,
  units: readonly KeyedUnit[],
  options: {
    readonly optimizer: AnyOptimizer | undefined;
    readonly onlyTrained: boolean | undefined;
    readonly holdsBuffers: boolean;
  },
): HeldModule {
  const { optimizer, onlyTrained, holdsBuffers } = options;
  const parameters = new Map(
    units.flatMap(({ unit, keys }) =>
      unit.parameters.map(({ tensor }, i) => [tensor, keys[i]!] as const),
    ),
  );
  return new HeldModule({
    parameters,
    buffers: holdsBuffers ? root.wrapper.namedBuffers() : [],
    optimizer,
    onlyTrained,
    // An expert's name has no number in its group, which is that of all ranks.
    ...(optimizer === undefined ? {} : { groupNames: namesFor(root, optimizer) }),
  });
}

/** What the ranks agree on for each flat parameter, and which of them this rank writes. */
function agreementsOf(root: Instance, units: readonly KeyedUnit[], operation: string) {
  const byFlat = new Map(units.map((keyed) => [keyed.unit.flat, keyed]));
  return {
    agree: (flat: Tensor, progress: FlatProgress) =>
      share(root, operation, () =>
        agreedProgress(byFlat.get(flat)!.unit, progress, 'saveCheckpoint'),
      ),
    isWriting: (flat: Tensor) => byFlat.get(flat)!.isWriting,
  };
}

/** Takes part in the agreements of a save that another replica writes. */
async function passOver(pieces: AsyncIterable<unknown>): Promise<undefined> {
  for await (const _ of pieces) {
    // Nothing is written here, because another replica has the piece.
  }
}
