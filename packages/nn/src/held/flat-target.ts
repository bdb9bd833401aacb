// One flat that a save is loaded into: its parameters, and the state that an optimizer keeps for
// it.

import { type Save, type TensorSpec, tensorKey, type WantedPiece } from '@shardweave/checkpoint';
import { byteSize, type Tensor } from '@shardweave/tensor-core';
import type { StateRun } from '../flat/layout/flat-state.js';
import { markCopies } from '../flat/placement.js';
import { type FlatHome, flatHomeOf } from '../flat/stores/flat-home.js';
import { fillDeferred } from '../parameters/deferred-parameter.js';
import {
  type AnyOptimizer,
  type FlatShare,
  parameterSpec,
  rangeOf,
  stateSpec,
} from './held-flats.js';

export class FlatTarget {
  /** The tensors of this flat that a save must have. */
  readonly expected: readonly TensorSpec[];
  /** The tensors that are being written, between `begin` and `end`. */
  readonly pieces: readonly WantedPiece[];
  readonly #flat: Tensor;
  readonly #shares: readonly FlatShare[];
  readonly #optimizer: AnyOptimizer | undefined;
  readonly #home: FlatHome | undefined;
  /** How many steps the saved state has seen. */
  readonly #runs: readonly StateRun[];
  /** Values for a home, which takes each tensor as a whole. */
  #parameter: Uint8Array | undefined;
  readonly #states = new Map<string, Uint8Array>();

  constructor(
    flat: Tensor,
    shares: readonly FlatShare[],
    {
      save,
      optimizer,
      stepped,
    }: {
      readonly save: Save;
      readonly optimizer: AnyOptimizer | undefined;
      /** The state tensors that it keeps of each parameter that it steps. */
      readonly stepped: ReadonlyMap<Tensor, readonly string[]>;
    },
  ) {
    this.#flat = flat;
    this.#shares = shares;
    this.#optimizer = optimizer;
    const home = flatHomeOf(flat);
    this.#home = home?.holdsState ? home : undefined;
    const steps = optimizer === undefined ? {} : (save.optimizer?.steps ?? {});
    // A tensor that no step had used when it was saved stands for zeros.
    const withState = shares.flatMap((share) => {
      const step = steps[share.name] ?? 0;
      const names = (stepped.get(share.param) ?? []).filter((state) =>
        save.tensors.has(tensorKey(stateSpec(share, state))),
      );
      return step > 0 && stepped.has(share.param) ? [{ share, step, names }] : [];
    });
    // A process without elements of a parameter keeps no state of it.
    this.#runs = withState.flatMap(({ share: { start, length }, step, names }) =>
      length > 0 ? [{ start, length, step, names }] : [],
    );
    const stateParts = withState.flatMap(({ share, names }) =>
      names.map((state) => ({ share, state })),
    );
    this.expected = [
      ...shares.map((share) => parameterSpec(flat, share)),
      ...stateParts.map(({ share, state }) => stateSpec(share, state)),
    ];
    this.pieces = [
      ...shares.map((share) => ({
        ...parameterSpec(flat, share),
        ...rangeOf(share),
        write: (start: number, bytes: Uint8Array) => {
          this.#writeParameter((share.start + start - share.first) * byteSize(flat.dtype), bytes);
        },
      })),
      ...stateParts.map(({ share, state }) => ({
        ...stateSpec(share, state),
        ...rangeOf(share),
        write: (start: number, bytes: Uint8Array) => {
          this.#writeState(state, (share.start + start - share.first) * 4, bytes);
        },
      })),
    ];
  }

  async begin(): Promise<void> {
    const [flat, home, optimizer] = [this.#flat, this.#home, this.#optimizer];
    if (home !== undefined) {
      await home.ready();
      await home.steps.rest();
      this.#parameter = await home.parameter.read(0, flat.storage.byteLength);
    }
    for (const { param } of this.#shares) {
      fillDeferred(param);
    }
    markCopies(
      this.#shares.map(({ param }) => param),
      'loadCheckpoint',
    );
    if (optimizer === undefined || home !== undefined) {
      return;
    }
    if (this.#runs.length > 0 || optimizer.stateOf(flat) !== undefined) {
      await optimizer.writeFlatState(flat, { runs: this.#runs, tensors: new Map() });
    }
  }

  async end(): Promise<void> {
    const [flat, home, optimizer] = [this.#flat, this.#home, this.#optimizer];
    if (home === undefined) {
      return;
    }
    await home.parameter.write(this.#parameter!, 0);
    this.#parameter = undefined;
    flat.storage.markWritten();
    const before = (await optimizer?.flatStateRuns(flat)) ?? [];
    if (this.#runs.length + before.length > 0) {
      await optimizer!.writeFlatState(flat, { runs: this.#runs, tensors: this.#states });
    }
    this.#states.clear();
  }

  #writeParameter(byteOffset: number, bytes: Uint8Array): void {
    const { offset, dtype, storage } = this.#flat;
    if (this.#parameter !== undefined) {
      this.#parameter.set(bytes, byteOffset);
      return;
    }
    // A half word at a parameter's end is followed by padding.
    const words = new Uint8Array(Math.ceil(bytes.byteLength / 4) * 4);
    words.set(bytes);
    storage.write(words, offset * byteSize(dtype) + byteOffset);
  }

  #writeState(state: string, byteOffset: number, bytes: Uint8Array): void {
    if (this.#home === undefined) {
      const { tensors } = this.#optimizer!.stateOf(this.#flat)!;
      tensors.get(state)!.storage.write(bytes, byteOffset);
      return;
    }
    const whole = this.#states.get(state) ?? new Uint8Array(this.#flat.size * 4);
    this.#states.set(state, whole);
    whole.set(bytes, byteOffset);
  }
}
