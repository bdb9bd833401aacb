// What a store has of a model beside its flats: what it is made of, its buffers, and the device's
// random state. It is written with every commit, so all of it belongs to the same step.

import { byteSize } from '@shardweave/dtypes';
import type { Device, RandomState, Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { StoreUse } from './store-use.js';

/**
 * What a StoredModel is made of: the model's name and parts, and whether it goes on from what the
 * store has.
 */
export interface StoredModelOptions {
  readonly use: StoreUse;
  readonly name: string;
  readonly device: Device;
  /**
   * Goes on from what the store has. False: begins anew, whatever is there. Undefined: begins anew,
   * unless there is a model that has been trained.
   */
  readonly resume: boolean | undefined;
  /** Its parts in words, one a line: a model of other lines is another one. */
  lines(): readonly string[];
  buffers(): readonly (readonly [name: string, buffer: Tensor])[];
  /** Steps that its parameters at rest have seen. */
  numSteps(): number;
}

interface Head {
  readonly lines: readonly string[];
  readonly numSteps: number;
  readonly random: RandomState;
}

/**
 * What a store has of a model beside its flats: what the model is made of, its buffers, and the
 * random state of the device, all of the same step.
 */
export class StoredModel {
  readonly #options: StoredModelOptions;
  #opening: Promise<void> | undefined;
  #name: string | undefined;
  #leave: () => void = () => {};

  constructor(options: StoredModelOptions) {
    this.#options = options;
  }

  /**
   * Takes its place in the store, before any of its flats does. Once; where it rejects, the store
   * has what it had.
   * @throws {OptimizerError} where there is nothing to go on from, or another model; or one that
   * would be lost
   */
  open(): Promise<void> {
    this.#opening ??= this.#open().catch((error: unknown) => {
      this.close(); // another attempt finds it as it was
      throw error;
    });
    return this.#opening;
  }

  /** Gives up its place in the store; what is there stays. */
  close(): void {
    this.#leave();
    if (this.#name !== undefined) {
      this.#options.use.release(this.#name);
    }
    this.#name = undefined;
    this.#opening = undefined;
  }

  async #open(): Promise<void> {
    const { use, resume, device } = this.#options;
    this.#name = use.claim(this.#options.name);
    const head = await this.#readHead();
    if (resume === true) {
      this.#requireSame(head);
      for (const [name, { storage, offset, size, dtype }] of this.#options.buffers()) {
        const bytes = new Uint8Array(size * byteSize(dtype));
        await use.store.read(this.#bufferKey(name), bytes);
        storage.write(bytes, offset * byteSize(dtype));
      }
      if (!device.random.hasBegun) {
        device.random.restore(head!.random);
      }
    } else {
      if (resume === undefined && head !== undefined && head.numSteps > 0) {
        throw new OptimizerError(
          `resume: expected no trained model under '${this.#name}' in the store, got one after ${head.numSteps} steps, which would be lost. Go on from it (resume: true), or begin anew in its place (resume: false).`,
        );
      }
      await use.clear(this.#name);
    }
    this.#leave = use.join(() => this.#write());
  }

  async #readHead(): Promise<Head | undefined> {
    const { store } = this.#options.use;
    const byteLength = store.byteLength(this.#headKey);
    if (byteLength === undefined) {
      return undefined;
    }
    const bytes = new Uint8Array(byteLength);
    await store.read(this.#headKey, bytes);
    return JSON.parse(new TextDecoder().decode(bytes)) as Head;
  }

  #requireSame(head: Head | undefined): void {
    if (head === undefined) {
      throw new OptimizerError(
        `resume: expected a model under '${this.#name}' in the store, got none. Resume the same model on the same ranks, or begin anew (resume: false).`,
      );
    }
    const lines = this.#options.lines();
    const count = Math.max(lines.length, head.lines.length);
    for (let i = 0; i < count; i++) {
      if (lines[i] === head.lines[i]) {
        continue;
      }
      throw new OptimizerError(
        `resume: expected the model that the store has under '${this.#name}': ${head.lines[i] ?? 'no more'}. Got ${lines[i] ?? 'no more'}. Resume the same model on the same ranks, or begin anew (resume: false).`,
      );
    }
  }

  async #write(): Promise<void> {
    const { use, device } = this.#options;
    const writes = this.#options.buffers().map(async ([name, buffer]) => {
      await use.store.write(this.#bufferKey(name), await buffer.toBytes());
    });
    const head: Head = {
      lines: this.#options.lines(),
      numSteps: this.#options.numSteps(),
      random: device.random.state(),
    };
    const text = JSON.stringify(head).padEnd(JSON.stringify(head.lines).length + ROOM_BYTES);
    await Promise.all([...writes, use.store.write(this.#headKey, new TextEncoder().encode(text))]);
  }

  get #headKey(): string {
    return `${this.#name}/head`;
  }

  #bufferKey(name: string): string {
    return `${this.#name}/buffer/${name}`;
  }
}

/** For names and numbers of up to 16 digits, so that a later step needs no more room. */
const ROOM_BYTES = 192;
