// What a store holds of a model besides its flats: a description of its parts, its buffers, and the
// random state of the device. Every commit writes all of it, so it belongs to the same step as the
// flats.

import { byteSize } from '@shardweave/dtypes';
import type { Device, RandomState, Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { StoreUse } from './store-use.js';

/**
 * Options of StoredModel: where the model is stored, its parts, and whether it continues from what
 * the store has.
 */
export interface StoredModelOptions {
  readonly use: StoreUse;
  readonly name: string;
  readonly device: Device;
  /**
   * Whether to continue from what the store has. True: continue, and fail if there is nothing.
   * False: begin anew, whatever is there. Undefined: begin anew, and fail if there is a model that
   * has been trained.
   */
  readonly resume: boolean | undefined;
  /**
   * A description of the model's parts, one per line. A stored model with other lines is another
   * model.
   */
  lines(): readonly string[];
  buffers(): readonly (readonly [name: string, buffer: Tensor])[];
  /** The number of steps that the stored parameters have seen. */
  numSteps(): number;
}

interface Head {
  readonly lines: readonly string[];
  readonly numSteps: number;
  readonly random: RandomState;
}

/**
 * What a store holds of a model besides its flats: a description of its parts, its buffers, and the
 * random state of the device, all as of the same step.
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
   * Claims the model's place in the store, before any of its flats does, and reads what is there or
   * clears it. Later calls return the first one's promise; after a failure the next call tries
   * again.
   * @throws {OptimizerError} for `resume: true` where the store has no model or another one, and
   * without `resume` where it has a trained one, which would be lost
   */
  open(): Promise<void> {
    this.#opening ??= this.#open().catch((error: unknown) => {
      this.close(); // another attempt finds it as it was
      throw error;
    });
    return this.#opening;
  }

  /** Releases the place in the store. What is stored there stays. */
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

/**
 * Room for names and for numbers of up to 16 digits. The head is padded by it, so that it keeps its
 * length in later steps.
 */
const ROOM_BYTES = 192;
