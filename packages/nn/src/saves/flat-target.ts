// One flat that a save is loaded into: its parameters, and the state that an optimizer keeps of it.

import type { Save, TensorSpec, WantedPiece } from '@shardweave/checkpoint';
import { byteSize, type Tensor } from '@shardweave/tensor-core';
import { StateDictError } from '../errors.js';
import { fillDeferred } from '../flat/deferred-parameter.js';
import { type FlatHome, flatHomeOf } from '../residence/flat-home.js';
import {
  type AnyOptimizer,
  type FlatShare,
  parameterSpec,
  rangeOf,
  stateSpec,
} from './held-flats.js';

export class FlatTarget {
  /** What a save has to have of it. */
  readonly expected: readonly TensorSpec[];
  /** What is written of it; between `begin` and `end`. */
  readonly pieces: readonly WantedPiece[];
  readonly #flat: Tensor;
  readonly #shares: readonly FlatShare[];
  readonly #optimizer: AnyOptimizer | undefined;
  readonly #home: FlatHome | undefined;
  /** Steps of the saved state; 0 where there is none. */
  readonly #step: number;
  /** What goes to a home, which takes it as a whole. */
  #parameter: Uint8Array | undefined;
  readonly #states = new Map<string, Uint8Array>();

  /** @throws {StateDictError} for parameters of one flat with unequal step counts */
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
      /** The parameters that it steps. */
      readonly stepped: ReadonlySet<Tensor>;
    },
  ) {
    this.#flat = flat;
    this.#shares = shares;
    this.#optimizer = optimizer;
    const home = flatHomeOf(flat);
    this.#home = home?.holdsState ? home : undefined;
    const steps = optimizer === undefined ? {} : (save.optimizer?.steps ?? {});
    const withState = shares.filter(({ param, name }) => {
      return stepped.has(param) && Object.hasOwn(steps, name);
    });
    // Who has nothing of a parameter keeps no state of it.
    const own = withState.filter(({ length }) => length > 0);
    this.#step = oneStep(flat, own, steps);
    // A tensor that no step had used when it was saved is zeros, and begins anew.
    const saved = new Set([...save.tensors.values()].map((tensor) => tensor.state));
    const stateNames = (optimizer?.stateNames() ?? []).filter((name) => saved.has(name));
    const stateParts = withState.flatMap((share) => stateNames.map((state) => ({ share, state })));
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
      this.#parameter = await home.readParameter(0, flat.storage.byteLength);
    }
    for (const { param } of this.#shares) {
      fillDeferred(param);
    }
    const isStepped = this.#step > 0;
    if (optimizer === undefined || home !== undefined) {
      return;
    }
    if (isStepped || optimizer.stateOf(flat) !== undefined) {
      await optimizer.writeFlatState(flat, this.#step, new Map());
    }
  }

  async end(): Promise<void> {
    const [flat, home, optimizer] = [this.#flat, this.#home, this.#optimizer];
    if (home === undefined) {
      return;
    }
    await home.writeParameter(this.#parameter!, 0);
    this.#parameter = undefined;
    flat.storage.markWritten();
    const isStepped = this.#step > 0 || (await optimizer?.flatStateHeader(flat)) !== undefined;
    if (optimizer !== undefined && isStepped) {
      await optimizer.writeFlatState(flat, this.#step, this.#states);
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
      const { tensors, unused } = this.#optimizer!.stateOf(this.#flat)!;
      tensors.get(state)!.storage.write(bytes, byteOffset);
      unused.delete(state);
      return;
    }
    const whole = this.#states.get(state) ?? new Uint8Array(this.#flat.size * 4);
    this.#states.set(state, whole);
    whole.set(bytes, byteOffset);
  }
}

function oneStep(
  flat: Tensor,
  shares: readonly FlatShare[],
  steps: Readonly<Record<string, number>>,
): number {
  const distinct = new Set(shares.map(({ name }) => steps[name]!));
  if (distinct.size <= 1) {
    return [...distinct][0] ?? 0;
  }
  throw new StateDictError(
    `loadCheckpoint: expected equal step counts in flat parameter '${flat.name}', got ${[...distinct].join(', ')}. Load it into flat parameters of one parameter each, or put parameters that differ into groups.`,
    { mismatched: shares.map(({ name }) => name) },
  );
}
