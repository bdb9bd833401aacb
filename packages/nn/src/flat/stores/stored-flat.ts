// The home of one flat parameter off the device: its shard, gradient and optimizer state are bytes
// in a store, in host memory or on disk. Gathers start from them, reduced gradients add up in them,
// and the optimizer visits them (FlatHome) one flat at a time.

import type { Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { FlatPlace } from '../layout/flat-layout.js';
import type { FlatHome, FlatVisit, VisitStep } from './flat-home.js';
import type { HostBuffers } from './host-buffers.js';
import type { RestingState } from './resting-state.js';
import { RestingStates } from './resting-states.js';
import type { StoreUse } from './store-use.js';
import { StoredBytes } from './stored-bytes.js';
import { StoredGradient } from './stored-gradient.js';
import type { StoredModel } from './stored-model.js';
import { StoredParameter } from './stored-parameter.js';
import { StoredVisit, type VisitValue } from './stored-visit.js';

/** The store that a flat rests in, and how much of the flat rests there. */
export interface StoredFlatOptions {
  readonly use: StoreUse;
  /** Whether only the gradient rests there, or the parameter and the optimizer state too. */
  readonly rests: 'gradient' | 'all';
  /** Whether what the store has under the flat's name replaces the initial values. */
  readonly resume: boolean;
  /** What the same store keeps of the model around the flat. It opens before the flat does. */
  readonly model?: StoredModel;
  /**
   * The flat's name in the store, where it is known before the module is first called. The first
   * use then opens the flat; otherwise only a call of the module does.
   */
  readonly name?: string;
}

/**
 * The home of one flat parameter in a store: gathers read its values there, reduced gradients add
 * up there, and the optimizer visits it flat by flat.
 */
export class StoredFlat implements FlatHome {
  readonly holdsState: boolean;
  readonly steps: StoreUse;
  readonly parameter: StoredParameter;
  readonly gradient: StoredGradient;
  readonly states: RestingStates;
  readonly #flat: Tensor;
  readonly #options: StoredFlatOptions;
  readonly #hostBuffers: () => HostBuffers;
  #name: string | undefined;
  #opening: Promise<void> | undefined;
  /** There can be several: a wrapper and one inside it may both be in their forward. */
  #occupants: readonly { readonly by: string }[] = [];

  /**
   * @param flat [shardLength] in the master dtype
   * @param hostBuffers the pool of buffers for bytes on their way
   */
  constructor(flat: Tensor, options: StoredFlatOptions, hostBuffers: () => HostBuffers) {
    const { use, rests } = options;
    this.#flat = flat;
    this.steps = use;
    this.#options = options;
    this.#hostBuffers = hostBuffers;
    this.parameter = new StoredParameter(flat, options, hostBuffers);
    this.gradient = new StoredGradient(use, hostBuffers);
    this.states = new RestingStates(flat, use);
    this.holdsState = rests === 'all';
  }

  /**
   * Takes its place in the store, under a name that its wrapper has claimed there. The same program
   * must give it the same name in every process.
   * @throws {OptimizerError} where it resumes and the store has no such values
   */
  open(name: string): Promise<void> {
    this.#opening ??= this.#takePlace(name).catch((error: unknown) => {
      this.close(); // so that open can be tried again
      throw error;
    });
    return this.#opening;
  }

  async ready(): Promise<void> {
    const { name } = this.#options;
    if (name === undefined && this.#opening === undefined) {
      throw new OptimizerError(
        `optimizer: expected '${this.#flat.name}' in its store before its state is read or written, got a module that was never called. Call or initialize it first.`,
      );
    }
    await this.open(name ?? '');
  }

  async #takePlace(name: string): Promise<void> {
    const { use, resume, model } = this.#options;
    const { size, storage } = this.#flat;
    await model?.open();
    this.#name = name;
    if (!resume) {
      await use.clear(name);
    }
    const at = (part: string, options: { readonly byteLength: number; readonly resume: boolean }) =>
      new StoredBytes(use.store, `${name}/${part}`, options);
    this.parameter.open(name, at('parameter', { byteLength: storage.byteLength, resume }));
    // A gradient that is there belongs to an unfinished step.
    this.gradient.open(at('gradient', { byteLength: size * 4, resume: false }));
    if (resume && !this.parameter.stored.exists) {
      throw new OptimizerError(
        `resume: expected ${storage.byteLength} bytes of '${name}' in the store, got none or another number. Resume the same model on the same ranks.`,
      );
    }
    await this.states.open(name, { resume });
  }

  /** Gives up its place in the store; the values stay there. */
  close(): void {
    this.#name = undefined;
    this.#opening = undefined;
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

  /** Its name in the store. */
  get name(): string {
    return this.#name!;
  }

  get hasGradient(): boolean {
    return this.gradient.isThere;
  }

  get gradientVersion(): number {
    return this.gradient.version;
  }

  holdGradient(): () => void {
    return this.gradient.hold();
  }

  clearGradient(places?: readonly FlatPlace[]): void {
    this.gradient.clear(places);
  }

  start(state: RestingState | undefined, { names, runs }: VisitStep): FlatVisit {
    const values: VisitValue[] = [];
    if (state !== undefined) {
      const { stored } = this.parameter;
      values.push({ stored, role: 'param', dtype: this.#flat.dtype, isChanging: true });
      for (const name of names) {
        const role = { state: name };
        values.push({ stored: state.tensor(name), role, dtype: 'f32', isChanging: true });
      }
    }
    return this.#visit(values, async () => state?.setRuns(runs, names));
  }

  startGradient(): FlatVisit {
    this.steps.requireWhole(this.name);
    return this.#visit([]);
  }

  /** @param keep as in VisitOptions; without it the gradient is what changes */
  #visit(others: readonly VisitValue[], keep?: () => Promise<void>): FlatVisit {
    const flat = this.#flat;
    const { stored } = this.gradient;
    const isChanging = keep === undefined;
    return new StoredVisit({
      device: flat.device,
      hostBuffers: this.#hostBuffers(),
      elementCount: flat.size,
      values: [...others, { stored, role: 'grad', dtype: 'f32', isChanging }],
      isWhole: others.length === 0,
      keep: keep ?? (async () => {}),
    });
  }

  /** Whether host memory holds bytes that the store refused. */
  get hasUnsaved(): boolean {
    return (
      this.parameter.stored.isUnsaved ||
      this.gradient.stored.isUnsaved ||
      this.states.all.some((state) => state.hasUnsaved)
    );
  }

  async flush(): Promise<void> {
    for (const part of [this.parameter.stored, this.gradient.stored, ...this.states.all]) {
      await part.flush();
    }
  }
}
