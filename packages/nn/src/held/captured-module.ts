// What a process holds of a module at one moment, for a save that is written while steps go on.
// Values on the device stay there and are read one flat after the other, and a step waits before it
// changes a flat that was not read yet. Values in a store are pinned there, and no step waits.

import type { HeldPiece, SavedOptimizer } from '@shardweave/checkpoint';
import type { Storage, StorageReader, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { nameOf } from '../flat/layout/flat-plan.js';
import type { PinnedBytes } from '../flat/stores/byte-store.js';
import { type FlatHome, flatHomeOf } from '../flat/stores/flat-home.js';
import { type AnyOptimizer, deviceSource, type FlatBytes, type FlatSource } from './held-flats.js';

/**
 * A module at one moment. Release it when its pieces are written, and also when they will never be:
 * until then a step may wait for it.
 */
export interface CapturedModule {
  /** Whether this process has pieces to write; false where another one writes all that it has. */
  readonly isWriting: boolean;
  /** Iterate over it once. A flat may change as soon as the piece after it is asked for. */
  readonly pieces: AsyncIterable<HeldPiece>;
  /** The steps that parameters with elements here have seen, and the options of groups. */
  readonly optimizer: SavedOptimizer | undefined;
  /** Milliseconds that steps have waited for flats to be read. */
  readonly waitMs: number;
  /** Lets steps change what was not read yet, which nobody can read any more then. Idempotent. */
  release(): Promise<void>;
}

interface CapturedFlat {
  readonly pieces: HeldPiece[];
  /** The version of the values on the device: a read checks that it is still the same. */
  readonly version: number | undefined;
  readonly readers: readonly StorageReader[];
  readonly pins: PinnedBytes[];
}

export class CapturedFlats {
  readonly #optimizer: AnyOptimizer | undefined;
  readonly #flats = new Map<Tensor, CapturedFlat>();
  readonly #readers = new Map<Storage, StorageReader>();
  #settled: Promise<void> | undefined;

  constructor(optimizer: AnyOptimizer | undefined) {
    this.#optimizer = optimizer;
  }

  /** @throws {NnConfigError} where the flat is stepped in a store that can't pin it */
  async source(flat: Tensor): Promise<FlatSource> {
    const home = flatHomeOf(flat);
    return home === undefined ? this.#onDevice(flat) : this.#atRest(flat, home);
  }

  /** Adds pieces of a flat whose source was asked for. */
  add(flat: Tensor, pieces: readonly HeldPiece[]): void {
    this.#flats.get(flat)!.pieces.push(...pieces);
  }

  captured({
    buffers,
    optimizer,
    isWriting,
  }: Pick<CapturedModule, 'optimizer' | 'isWriting'> & {
    readonly buffers: readonly HeldPiece[];
  }): CapturedModule {
    const readers = this.#readers;
    const release = () => this.release();
    return {
      isWriting,
      pieces: this.#pieces(buffers),
      optimizer,
      release,
      get waitMs() {
        return [...readers.values()].reduce((sum, { waitMs }) => sum + waitMs, 0);
      },
    };
  }

  async release(): Promise<void> {
    await Promise.all([...this.#flats.values()].map(releaseFlat));
  }

  #onDevice(flat: Tensor): FlatSource {
    this.#settled ??= flat.device.synchronize();
    const state = this.#optimizer?.stateOf(flat)?.tensors.values() ?? [];
    const readers = [flat, ...state].map(({ storage }) => {
      const reader = storage.openReader(this.#settled);
      this.#readers.set(storage, reader);
      return reader;
    });
    this.#flats.set(flat, { pieces: [], version: flat.storage.version, readers, pins: [] });
    return deviceSource(flat, (storage, ...range) => this.#readers.get(storage)!.read(...range));
  }

  async #atRest(flat: Tensor, home: FlatHome): Promise<FlatSource> {
    const pins: PinnedBytes[] = [];
    this.#flats.set(flat, { pieces: [], version: undefined, readers: [], pins });
    const require = (bytes: PinnedBytes | undefined): FlatBytes => {
      if (bytes !== undefined) {
        return pinnedBytes(bytes);
      }
      throw new NnConfigError(
        `captureCheckpoint: expected parameters on the device, or in a store that can pin them, got ${nameOf(flat)}. Use saveCheckpoint.`,
      );
    };
    if (home.holdsState) {
      await home.ready();
      await home.steps.rest();
    }
    const parameter = home.holdsState ? await home.parameter.pin() : undefined;
    pins.push(...present(parameter));
    const state = async (optimizer: AnyOptimizer) => {
      const tensors = await optimizer.pinFlatState(flat);
      pins.push(...[...tensors.values()].flatMap(present));
      const bytes = new Map([...tensors].map(([name, tensor]) => [name, require(tensor)]));
      return (name: string) => bytes.get(name);
    };
    return { parameter: require(parameter), state };
  }

  async *#pieces(buffers: readonly HeldPiece[]): AsyncGenerator<HeldPiece> {
    for (const [flat, captured] of this.#flats) {
      yield* captured.pieces;
      if (flat.storage.version !== (captured.version ?? flat.storage.version)) {
        throw new NnConfigError(
          `captureCheckpoint: expected parameters that nobody changes before they are read, got a change of ${nameOf(flat)} by other means than its optimizer. Await the save first.`,
        );
      }
      await releaseFlat(captured);
    }
    yield* buffers;
  }
}

function present(pinned: PinnedBytes | undefined): PinnedBytes[] {
  return pinned === undefined ? [] : [pinned];
}

function pinnedBytes(pinned: PinnedBytes): FlatBytes {
  return {
    file: pinned,
    read: async (byteOffset, _, into) => {
      await pinned.read(into, { offset: byteOffset });
      return into;
    },
  };
}

async function releaseFlat({ readers, pins }: CapturedFlat): Promise<void> {
  for (const reader of readers) {
    reader.close();
  }
  await Promise.all(pins.map((pin) => pin.release()));
}
