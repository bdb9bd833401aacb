// Writes one save of all ranks into a directory of its own: each rank writes its pieces, the first
// rank writes the index when all pieces are there, and then the directory gets its name.

import { rm } from 'node:fs/promises';
import { type PieceStore, saveOverRanks, writePart } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import {
  agreeOnTexts,
  CollectiveError,
  exchangeTexts,
  type ProcessGroup,
} from '@shardweave/collectives';
import type { CapturedModule } from '@shardweave/nn';
import type { FileLayer } from '@shardweave/shard-store/node';
import { namingDisk } from '../files/disk-room.js';
import { beginPart, endPart, pathOf } from '../files/save-directory.js';

export interface WriteSaveOptions {
  /** The directory of the run's saves, which all ranks see. */
  readonly directory: string;
  readonly step: number;
  /**
   * The group over which ranks exchange what they have written; nothing else is sent there
   * meanwhile.
   */
  readonly group: ProcessGroup;
  /** JSON that is kept beside the pieces; the first rank's is taken. */
  readonly extra: Readonly<Record<string, unknown>>;
  /** The file system. Default: Node's. */
  readonly files?: FileLayer | undefined;
}

/** How a save ended, the same on all ranks. */
export type SaveOutcome = { readonly directory: string; readonly bytes: number } | SaveFailed;

export interface SaveFailed {
  readonly failure: string;
}

/**
 * Writes what each rank has captured, and releases it. Collective. A rank that can't write fails
 * the save on all ranks; what was written of it is removed, and other saves stay as they were.
 * @throws what the group throws, and nothing else
 */
export async function writeCaptured(
  captured: CapturedModule,
  options: WriteSaveOptions,
): Promise<SaveOutcome> {
  const { group, extra } = options;
  const { rank, worldSize } = group;
  const outcome = inPart(options, (store, agree, end) =>
    saveOverRanks(store, {
      ...{ rank, worldSize, extra, agree, isPublisher: rank === 0 },
      isCalledOff: (error) => error instanceof SaveFailure,
      write: async (part) => {
        const written = captured.isWriting
          ? await writePart(store, captured.pieces, part)
          : undefined;
        await captured.release(); // so that steps don't wait for other ranks' writing
        return written;
      },
      optimizer: () => captured.optimizer,
      end: async (parts = []) => {
        const lengths = parts.flatMap(({ files }) => Object.values(files));
        return end(lengths.reduce((sum, byteLength) => sum + byteLength, 0));
      },
    }),
  );
  return outcome.finally(() => captured.release().catch(() => undefined));
}

/**
 * Writes by means of `save`, which is itself collective and ends with the save published. It is for
 * state that rests off the device, and is never whole on the host. Throws as writeCaptured does.
 */
export function writeAtRest(
  save: (store: PieceStore, extra: Readonly<Record<string, unknown>>) => Promise<void>,
  options: WriteSaveOptions,
): Promise<SaveOutcome> {
  return inPart(options, (store, agree, end) =>
    agree(async () => {
      await save(store, options.extra);
      let byteLength = 0;
      for (const file of await store.files()) {
        byteLength += (await store.byteLength(file)) ?? 0;
      }
      return end(byteLength);
    }),
  );
}

/** Runs on one rank; gives every rank's text, or throws on all ranks where one threw. */
type Agree = (own: () => Promise<string | undefined>) => Promise<readonly string[]>;

/** Some rank failed, and all ranks know it. */
class SaveFailure extends Error {}

/**
 * Makes the directory, and lets `write` fill it. On the first rank `end` gives the directory its
 * name; its texts are what `write` gives.
 */
async function inPart(
  options: WriteSaveOptions,
  write: (
    store: PieceStore,
    agree: Agree,
    end: (bytes: number) => Promise<string>,
  ) => Promise<readonly string[]>,
): Promise<SaveOutcome> {
  const { directory, step, group, files } = options;
  const agree = agreeOver(group, pathOf(directory, step));
  let part: string | undefined;
  try {
    [part] = await agree(async () => (group.rank === 0 ? beginPart(directory, step) : ''));
    const place = pieceDirectory(part!, files === undefined ? {} : { files });
    // The run has the lock of all its saves, and this directory is new, so it needs no lock of its
    // own.
    const store: PieceStore = { ...place, lock: async () => async () => {} };
    const [outcome] = await write(store, agree, async (bytes) =>
      group.rank === 0 ? JSON.stringify({ directory: await endPart(part!), bytes }) : '',
    );
    return JSON.parse(outcome!) as SaveOutcome;
  } catch (error) {
    if (!(error instanceof SaveFailure)) {
      throw error;
    }
    if (group.rank === 0 && part !== undefined) {
      await rm(part, { recursive: true, force: true }).catch(() => undefined);
    }
    return { failure: error.message };
  }
}

function agreeOver(group: ProcessGroup, path: string): Agree {
  const call = { tag: 'save', identity: 'save' };
  return async (write) => {
    const outcome = await write().then(
      (text = '') => ({ text }),
      (error: unknown) => {
        if (error instanceof CollectiveError) {
          throw error;
        }
        const named = namingDisk(error, path);
        return { failure: named instanceof Error ? named.message : String(named) };
      },
    );
    const texts = await agreeOnTexts((text) => exchangeTexts(group, text, call), outcome);
    if ('reason' in texts) {
      const who = group.worldSize === 1 ? '' : `rank ${texts.rank}: `;
      throw new SaveFailure(`${who}${texts.reason}`);
    }
    return texts;
  };
}
