// What a process holds of a module at one moment, for a save that is written while steps go on. Values stay
// on the device and are read one flat after the other; a step waits for those flats that it changes.

import type { HeldPiece, SavedOptimizer } from '@shardweave/checkpoint';
import type { Storage, StorageReader, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { flatHomeOf } from '../flat/homes/flat-home.js';
import { nameOf } from '../optim/flat-plan.js';
import type { AnyOptimizer, ReadStorage } from './held-flats.js';

/** Release it when the pieces are written, or not going to be: until then a step may wait for it. */
export interface CapturedModule {
  /** To be gone through once; a flat may change as soon as what follows it is asked for. */
  readonly pieces: AsyncIterable<HeldPiece>;
  /** Steps of parameters that have elements here, and the options of groups. */
  readonly optimizer: SavedOptimizer | undefined;
  /** Milliseconds that steps have waited for flats to be read. */
  readonly waitMs: number;
  /** Lets steps change what was not read, which can't be read any more then. Idempotent. */
  release(): void;
}

interface CapturedFlat {
  readonly pieces: HeldPiece[];
  readonly version: number;
  readonly readers: readonly StorageReader[];
}

export class CapturedFlats {
  readonly #optimizer: AnyOptimizer | undefined;
  readonly #flats = new Map<Tensor, CapturedFlat>();
  readonly #readers = new Map<Storage, StorageReader>();
  #settled: Promise<void> | undefined;

  constructor(optimizer: AnyOptimizer | undefined) {
    this.#optimizer = optimizer;
  }

  readonly read: ReadStorage = (storage, byteOffset, byteLength) =>
    this.#readers.get(storage)!.read(byteOffset, byteLength);

  /** @throws {NnConfigError} where the flat rests in a store, whose steps do not wait */
  add(flat: Tensor, pieces: readonly HeldPiece[]): void {
    const known = this.#flats.get(flat);
    if (known !== undefined) {
      known.pieces.push(...pieces);
      return;
    }
    if (flatHomeOf(flat) !== undefined) {
      throw new NnConfigError(
        `captureCheckpoint: expected parameters on the device, got ${nameOf(flat)}, which is stepped in a store. Use saveCheckpoint.`,
      );
    }
    this.#settled ??= flat.device.synchronize();
    const state = this.#optimizer?.stateOf(flat)?.tensors.values() ?? [];
    const readers = [flat, ...state].map(({ storage }) => {
      const reader = storage.openReader(this.#settled);
      this.#readers.set(storage, reader);
      return reader;
    });
    this.#flats.set(flat, { pieces: [...pieces], version: flat.storage.version, readers });
  }

  captured({
    buffers,
    optimizer,
  }: Pick<CapturedModule, 'optimizer'> & {
    readonly buffers: readonly HeldPiece[];
  }): CapturedModule {
    const readers = this.#readers;
    const release = () => this.release();
    return {
      pieces: this.#pieces(buffers),
      optimizer,
      release,
      get waitMs() {
        return [...readers.values()].reduce((sum, { waitMs }) => sum + waitMs, 0);
      },
    };
  }

  release(): void {
    for (const reader of this.#readers.values()) {
      reader.close();
    }
  }

  async *#pieces(buffers: readonly HeldPiece[]): AsyncGenerator<HeldPiece> {
    for (const [flat, { pieces, version, readers }] of this.#flats) {
      yield* pieces;
      if (flat.storage.version !== version) {
        throw new NnConfigError(
          `captureCheckpoint: expected parameters that nobody changes before they are read, got a change of ${nameOf(flat)} by other means than its optimizer. Await the save first.`,
        );
      }
      for (const reader of readers) {
        reader.close();
      }
    }
    yield* buffers;
  }
}
