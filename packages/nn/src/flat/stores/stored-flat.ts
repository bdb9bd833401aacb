// The home of one flat parameter off the device: its shard, gradient and optimizer state are bytes
// in a store, in host memory or on disk. Gathers start from them, reduced gradients add up in them,
// and the optimizer visits them (FlatHome) one flat at a time.

import { byteSize, type DType, type Storage, type Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { FlatPlace } from '../layout/flat-layout.js';
import type { PinnedBytes } from './byte-store.js';
import type { FlatHome, FlatVisit, VisitStep } from './flat-home.js';
import type { HostBuffers } from './host-buffers.js';
import {
  HEAD,
  isOverlapping,
  isSameSignature,
  RestingState,
  refuseSignature,
  type StateSignature,
} from './resting-state.js';
import type { StoreUse } from './store-use.js';
import { StoredBytes } from './stored-bytes.js';
import { StoredGradient } from './stored-gradient.js';
import type { StoredModel } from './stored-model.js';
import { StoredVisit, type VisitValue } from './stored-visit.js';

/** What a StoredFlat is made of: the flat, the store, and how much of the flat rests there. */
export interface StoredFlatOptions {
  /** [shardLength] in the master dtype. */
  readonly flat: Tensor;
  readonly use: StoreUse;
  /** Whether only the gradient rests there, or the parameter and the optimizer state too. */
  readonly rests: 'gradient' | 'all';
  /** Whether what the store has under the flat's name replaces the initial values. */
  readonly resume: boolean;
  /** The pool of buffers for bytes on their way. */
  hostBuffers(): HostBuffers;
  /** What the same store keeps of the model around the flat. It opens before the flat does. */
  readonly model?: StoredModel;
  /**
   * The flat's name in the store, where it is known before the module is first called. The first
   * use then opens the flat; otherwise only a call of the module does.
   */
  readonly name?: string;
}

interface KeptState {
  /** Its number in the store, from 1. */
  readonly number: number;
  readonly state: RestingState;
  readonly owner: object | undefined;
  /** Whether its owner was disposed. The next optimizer of the same elements replaces it. */
  readonly isLeft: boolean;
}

/**
 * The home of one flat parameter in a store: gathers read its values there, reduced gradients add
 * up there, and the optimizer visits it flat by flat.
 */
export class StoredFlat implements FlatHome {
  readonly holdsState: boolean;
  readonly #options: StoredFlatOptions;
  /** States of an earlier process have no owner until an optimizer of their signature asks. */
  readonly #states: KeptState[] = [];
  #name: string | undefined;
  #opening: Promise<void> | undefined;
  #parameter: StoredBytes | undefined;
  readonly #gradient: StoredGradient;
  /** The shard's bytes between beginFilling and endFilling. */
  #filling: Uint8Array | undefined;
  /** There can be several: a wrapper and one inside it may both be in their forward. */
  #occupants: readonly { readonly by: string }[] = [];

  constructor(options: StoredFlatOptions) {
    this.#options = options;
    this.#gradient = new StoredGradient(options);
    this.holdsState = options.rests === 'all';
  }

  /**
   * Takes its place in the store, under a name that its wrapper has claimed there. The same program
   * must give it the same name in every process.
   * @throws {OptimizerError} where it resumes and the store has no such values
   */
  open(name: string): Promise<void> {
    this.#opening ??= this.#open(name);
    return this.#opening;
  }

  async #open(name: string): Promise<void> {
    await this.#options.model?.open();
    this.#name = name;
    try {
      await this.#takePlace();
    } catch (error) {
      this.close(); // so that open can be tried again
      throw error;
    }
  }

  async ready(): Promise<void> {
    const { name, flat } = this.#options;
    if (name === undefined && this.#opening === undefined) {
      throw new OptimizerError(
        `optimizer: expected '${flat.name}' in its store before its state is read or written, got a module that was never called. Call or initialize it first.`,
      );
    }
    await this.open(name ?? '');
  }

  async #takePlace(): Promise<void> {
    const { use, flat, resume } = this.#options;
    if (!resume) {
      await use.clear(this.name);
    }
    this.#parameter = this.#stored('parameter', flat.storage.byteLength);
    this.#gradient.open(this.#stored('gradient', flat.size * 4));
    this.#states.length = 0;
    if (!resume) {
      return;
    }
    if (!this.#parameter.exists) {
      throw new OptimizerError(
        `resume: expected ${flat.storage.byteLength} bytes of '${this.#name}' in the store, got none or another number. Resume the same model on the same ranks.`,
      );
    }
    for (const number of this.#numbersAtRest()) {
      const state = await RestingState.resume(use.store, this.#statePrefix(number), flat.size * 4);
      this.#states.push({ number, state, owner: undefined, isLeft: false });
    }
  }

  /**
   * The numbers of the states that the store has, ascending. An optimizer that took a number and no
   * step has left a gap.
   */
  #numbersAtRest(): number[] {
    const prefix = `${this.name}/`;
    const keys = this.#options.use.store.keys().filter((key) => key.startsWith(prefix));
    const numbers = keys.flatMap((key) => {
      const found = HEAD_KEY.exec(key.slice(prefix.length));
      return found === null ? [] : [Number(found[1] ?? 1)];
    });
    return numbers.sort((a, b) => a - b);
  }

  /** Gives up its place in the store; the values stay there. */
  close(): void {
    this.#name = undefined;
    this.#opening = undefined;
  }

  get steps(): StoreUse {
    return this.#options.use;
  }

  get occupant(): string | undefined {
    return this.#occupants[0]?.by;
  }

  occupy(by: string): () => void {
    const occupant = { by }; // an object, as two occupants may have one name
    this.#occupants = [...this.#occupants, occupant];
    return () => {
      this.#occupants = this.#occupants.filter((other) => other !== occupant);
    };
  }

  /** Whether it goes on from values of an earlier process. */
  get isResuming(): boolean {
    return this.#options.resume;
  }

  /** Its name in the store. */
  get name(): string {
    return this.#name!;
  }

  // ---- parameter -------------------------------------------------------------------------------

  /** Until endFilling, writeParameter writes to host memory only. */
  beginFilling(): void {
    this.#filling = this.#options.use.room(this.#parameter!.byteLength);
  }

  /** The bytes of these elements in the shard that is being filled; the caller writes them. */
  filling(start: number, length: number): Uint8Array {
    const elementBytes = byteSize(this.#options.flat.dtype);
    return this.#filling!.subarray(start * elementBytes, (start + length) * elementBytes);
  }

  async endFilling(): Promise<void> {
    const filled = this.#filling;
    this.#filling = undefined;
    if (filled !== undefined) {
      await this.#parameter!.write(filled, { isGiven: true });
    }
  }

  async readParameter(byteOffset: number, byteLength: number): Promise<Uint8Array> {
    this.#options.use.requireWhole(this.name);
    const bytes = this.#options.use.room(byteLength);
    await this.#parameter!.read(bytes, byteOffset);
    return bytes;
  }

  async pinParameter(): Promise<PinnedBytes | undefined> {
    this.#options.use.requireWhole(this.name);
    return this.#parameter!.pin();
  }

  /** Replaces a part. The store has no partial writes, so the whole is written. */
  async writeParameter(bytes: Uint8Array, byteOffset: number): Promise<void> {
    if (this.#filling !== undefined) {
      this.#filling.set(bytes, byteOffset);
      return;
    }
    this.#options.use.requireWhole(this.name);
    const { byteLength } = this.#parameter!;
    if (bytes.byteLength === byteLength) {
      return this.#parameter!.write(bytes);
    }
    const whole = await this.readParameter(0, byteLength);
    whole.set(bytes, byteOffset);
    await this.#parameter!.write(whole);
  }

  /** The shard in the dtype of computation, as a host buffer that the caller gives back. */
  async readForLoad(computeDType: DType): Promise<Uint8Array> {
    const { flat, use } = this.#options;
    use.requireWhole(this.name);
    const hostBuffers = this.#options.hostBuffers();
    const master = hostBuffers.take(this.#parameter!.byteLength);
    let isLent = true;
    try {
      await this.#parameter!.read(master);
      if (computeDType === flat.dtype) {
        isLent = false;
        return master;
      }
      const coded = hostBuffers.take(flat.size * 2);
      try {
        const codec = await use.codec();
        await codec?.encode(master, coded, { format: computeDType as 'f16' | 'bf16' });
      } catch (error) {
        hostBuffers.give(coded);
        throw error;
      }
      return coded;
    } finally {
      if (isLent) {
        hostBuffers.give(master);
      }
    }
  }

  /** Bytes of host buffers that readForLoad holds at most. */
  loadBytes(computeDType: DType): number {
    const { flat } = this.#options;
    const masterBytes = flat.storage.byteLength;
    return computeDType === flat.dtype ? masterBytes : masterBytes + flat.size * 2;
  }

  // ---- gradient --------------------------------------------------------------------------------

  get hasGradient(): boolean {
    return this.#gradient.isThere;
  }

  get gradientVersion(): number {
    return this.#gradient.version;
  }

  holdGradient(): () => void {
    return this.#gradient.hold();
  }

  clearGradient(places?: readonly FlatPlace[]): void {
    this.#gradient.clear(places);
  }

  /** f32 bytes; undefined without a gradient. */
  readGradient(): Promise<Uint8Array | undefined> {
    return this.#gradient.read();
  }

  /** Adds a reduced gradient that is on the device; see StoredGradient.addStorage. */
  addStorage(reduced: Storage, scale: number): Promise<void> {
    return this.#gradient.addStorage(reduced, scale);
  }

  /** Adds a reduced gradient that is on the host; see StoredGradient.addBytes. */
  addBytes(reduced: Uint8Array, dtype: DType, scale: number): Promise<void> {
    return this.#gradient.addBytes(reduced, dtype, scale);
  }

  // ---- visits ----------------------------------------------------------------------------------

  start(state: RestingState | undefined, { names, runs }: VisitStep): FlatVisit {
    const { flat } = this.#options;
    const values: VisitValue[] = [];
    if (state !== undefined) {
      const param = { stored: this.#parameter!, role: 'param', dtype: flat.dtype } as const;
      values.push({ ...param, isChanging: true });
      for (const name of names) {
        const tensor = { stored: state.tensor(name), role: { state: name }, dtype: 'f32' } as const;
        values.push({ ...tensor, isChanging: true });
      }
    }
    return this.#visit(values, {
      isGradientAlone: false,
      keep: async () => state?.setRuns(runs, names),
    });
  }

  startGradient(): FlatVisit {
    this.#options.use.requireWhole(this.name);
    return this.#visit([], { isGradientAlone: true, keep: async () => {} });
  }

  #visit(
    others: readonly VisitValue[],
    { isGradientAlone, keep }: { readonly isGradientAlone: boolean; keep(): Promise<void> },
  ): FlatVisit {
    const { flat } = this.#options;
    const gradient = { stored: this.#gradient.stored, role: 'grad', dtype: 'f32' } as const;
    return new StoredVisit({
      device: flat.device,
      hostBuffers: this.#options.hostBuffers(),
      elementCount: flat.size,
      values: [...others, { ...gradient, isChanging: isGradientAlone }],
      isWhole: others.length === 0,
      keep,
    });
  }

  // ---- optimizer state -------------------------------------------------------------------------

  /** The most steps that any optimizer's state at rest has seen; undefined where there is none. */
  get restingStep(): number | undefined {
    return mostSteps(this.#states);
  }

  stateOf(owner: object, signature: StateSignature): RestingState {
    const own = this.#states.find((state) => state.owner === owner);
    if (own !== undefined) {
      return own.state;
    }
    const resting = this.#states.filter((state) => state.owner === undefined);
    // Two states fit where an optimizer was made anew and nobody disposed the old one. The last is
    // the newer one.
    const fitting = resting.findLast(({ state }) => isSameSignature(state.signature, signature));
    if (fitting !== undefined) {
      this.#states[this.#states.indexOf(fitting)] = { ...fitting, owner };
      return fitting.state;
    }
    // An optimizer that never stepped has left no state, so other elements are no mistake.
    const same = this.#states.filter(({ state }) => isOverlapping(state.signature, signature));
    if (same.some((state) => state.owner === undefined)) {
      const kept = resting.map(({ state }) => state.signature);
      refuseSignature(this.name, kept, signature);
    }
    const { use, flat } = this.#options;
    const numbers = new Set(this.#states.map(({ number }) => number));
    let number = 1;
    while (numbers.has(number)) {
      number += 1;
    }
    const numStepsBefore = mostSteps(same) ?? 0;
    for (const left of same.filter(({ isLeft }) => isLeft)) {
      use.awaitBeforeCommit(left.state.remove().catch(() => undefined));
      this.#states.splice(this.#states.indexOf(left), 1);
    }
    const options = { signature, byteLength: flat.size * 4, numStepsBefore };
    const state = new RestingState(use.store, this.#statePrefix(number), options);
    this.#states.push({ number, state, owner, isLeft: false });
    return state;
  }

  leaveState(owner: object): void {
    const index = this.#states.findIndex((state) => state.owner === owner);
    if (index >= 0) {
      this.#states[index] = { ...this.#states[index]!, isLeft: true };
    }
  }

  /** The keys' prefix: `name/` for the first optimizer, then `name/2/`, `name/3/`. */
  #statePrefix(number: number): string {
    return number === 1 ? `${this.name}/` : `${this.name}/${number}/`;
  }

  /** Whether host memory holds bytes that the store refused. */
  get hasUnsaved(): boolean {
    return (
      this.#all.some(({ isUnsaved }) => isUnsaved) || this.#kept.some((flat) => flat.hasUnsaved)
    );
  }

  async flush(): Promise<void> {
    for (const stored of [...this.#all, ...this.#kept]) {
      await stored.flush();
    }
  }

  get #all(): StoredBytes[] {
    return [this.#parameter!, this.#gradient.stored];
  }

  get #kept(): RestingState[] {
    return this.#states.map(({ state }) => state);
  }

  #stored(part: string, byteLength: number): StoredBytes {
    const { use, resume } = this.#options;
    const isTaken = resume && part !== 'gradient'; // a gradient there is of an unfinished step
    const options = { byteLength, resume: isTaken };
    return new StoredBytes(use.store, `${this.#name}/${part}`, options);
  }
}

/** The key of a state's head behind the name of its flat, with the state's number if above 1. */
const HEAD_KEY = new RegExp(`^(?:(\\d+)/)?${HEAD}$`);

function mostSteps(states: readonly KeptState[]): number | undefined {
  const steps = states.flatMap(({ state }) => state.numSteps ?? []);
  return steps.length === 0 ? undefined : Math.max(...steps);
}
