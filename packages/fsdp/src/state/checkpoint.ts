// A sharded module into a save and back: every rank writes and reads the pieces that it owns, so
// nothing is ever whole on one of them, and any world size and any strategy loads what another
// saved.

import {
  beginSave,
  openSave,
  type PieceReader,
  type PieceStore,
  type Save,
  type SavedPart,
  type SaveSession,
  writePart,
} from '@shardweave/checkpoint';
import { exchangeTexts } from '@shardweave/collectives';
import type { CapturedModule } from '@shardweave/nn';
import { type AnyOptimizer, type FlatProgress, HeldModule } from '@shardweave/nn/flat';
import type { Tensor } from '@shardweave/tensor-core';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { agree, agreeOnText } from '../tree/agree.js';
import { exchangeCall } from '../tree/call-identity.js';
import { collectiveCall, noteShards } from '../tree/collective-call.js';
import { type Instance, instanceOf } from '../tree/instance.js';
import { agreedProgress } from './gather-flat-state.js';
import { isOneGroups, type KeyedUnit, keyedUnits } from './keyed-units.js';
import { namesFor } from './optim-state-dict.js';

/** What is saved beside the parameters, and whether frozen ones are left out. */
export interface SaveCheckpointOptions {
  /** Its state is saved too. */
  readonly optimizer?: AnyOptimizer;
  /** Kept beside it: JSON, the first rank's. */
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
 * Saves parameters and, if asked, optimizer state as each rank holds them, and buffers from the
 * first, in place of the save that is there. Collective; 8 MiB of it are on a host at once, and of
 * what rests in a store one flat parameter's state. Of several replicas the first writes.
 * @param store this rank's. The first rank has to see the save before; a directory may be shared or
 * not, files have names of their own
 * @throws {FsdpStateError} unless idle; {CheckpointError} as publication, and what a store throws,
 * on the rank itself; on the others {FsdpRankFailedError} that names it. The save before stays
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
  const { processGroup } = root;
  const operation = 'saveCheckpoint';
  const checkShards = noteShards(root, operation);
  const units = await keyedUnits(root, { operation });
  let session: SaveSession | undefined;
  let part: SavedPart | undefined;
  try {
    const held = await agree(root, operation, async () => {
      session = root.isFirstRank ? await beginSave(store) : undefined;
      return heldBy(root, units, { optimizer, onlyTrained, holdsBuffers: root.isFirstRank });
    });
    const [id] = await exchangeTexts(processGroup, session?.id ?? '', exchangeCall(operation));
    part = await agree(root, operation, (share) => {
      const pieces = async function* () {
        yield* held.pieces(agreementsOf(units, share));
        checkShards();
      };
      const name = `rank-${processGroup.rank}-of-${processGroup.worldSize}`;
      return root.isFirstReplica
        ? writePart(store, pieces(), { save: id!, part: name })
        : passOver(pieces());
    });
    const written = JSON.stringify([part, held.steps]);
    const texts = await exchangeTexts(processGroup, written, exchangeCall(operation));
    await agree(root, operation, async () => {
      const all = texts.map((text) => JSON.parse(text) as [SavedPart, Record<string, number>]);
      const steps = Object.assign({}, ...all.map((each) => each[1]));
      const record = held.optimizerRecord();
      const saved = record && { ...record, steps };
      const parts = all.map((each) => each[0]);
      await session?.publish(parts, { optimizer: saved, extra });
    });
  } catch (error) {
    // Best effort, for the first error is the one to tell; the next save removes what is left.
    if (part !== undefined && session === undefined) {
      for (const file of Object.keys(part.files)) {
        await store.delete(file).catch(() => undefined);
      }
    }
    await session?.abandon().catch(() => undefined);
    throw error;
  }
}

/**
 * What this rank would write in saveCheckpoint, for writePart: forwards, backwards and steps may
 * follow at once, and are not in it. Collective. Shards stay on the device until they are written;
 * a step of the optimizer waits for those that were not read, so let nobody else change parameters
 * or state before. What rests in a store on disk is pinned there: a save in a directory of the same
 * device takes its files and copies none. Release it behind writePart. A rank that is not of the
 * first replica gets no pieces.
 * @returns steps are those of parameters that have elements here: whoever publishes puts all ranks'
 * together
 * @throws {FsdpStateError} unless idle; {NnConfigError} where shards or gradients rest off the
 * device in a store that can't pin them; {FsdpRankFailedError} where another rank fails
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
      return await agree(root, operation, async (share) => {
        const agreements = agreementsOf(units, share);
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
 * Loads what any strategy saved, at any world size. Collective. Floats are converted to what
 * parameters have here. Every rank checks all pieces that it will read before any of them writes
 * one. At once on the host are 1 MiB of a file, and of what rests in a store one flat parameter and
 * its state; on the device nothing more than after it.
 * @param reader this rank's: it has to find the index, and the files that its own pieces are in
 * @returns extra, as it was saved
 * @throws {CheckpointError} for no save, a damaged one, or another model's, on the rank itself, on
 * the others {FsdpRankFailedError} that names it: nothing is loaded on any. Where a rank fails
 * after that, what is loaded is mixed: load again
 * @throws {FsdpStateError} unless idle
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
    save = await openSave(reader);
    await held.check(save, { strict, isForeign: isOneGroups });
    return save.id; // ranks may have read different saves
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
  if (optimizer !== undefined) {
    namesFor(root, optimizer); // refuses parameters of other modules
  }
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
  });
}

/** What ranks agree on of each flat, and which of them this one writes. */
function agreementsOf(
  units: readonly KeyedUnit[],
  share: <T>(collective: () => Promise<T>) => Promise<T>,
) {
  const byFlat = new Map(units.map((keyed) => [keyed.unit.flat, keyed]));
  return {
    agree: (flat: Tensor, own: FlatProgress) =>
      share(() => agreedProgress(byFlat.get(flat)!.unit, own, 'saveCheckpoint')),
    isWriting: (flat: Tensor) => byFlat.get(flat)!.isWriting,
  };
}

/** Takes part in the agreements of a save that another replica writes. */
async function passOver(pieces: AsyncIterable<unknown>): Promise<undefined> {
  for await (const _ of pieces) {
    // another replica has it
  }
}
