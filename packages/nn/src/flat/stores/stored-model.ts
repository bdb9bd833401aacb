// What a store holds of a model besides its flats: a description of its parts, its buffers, and the
// random state of the device. Every commit writes all of it, so it belongs to the same step as the
// flats.
//
// Note [forms at rest]
// The description names the form that bytes have in the store, and never the dtype that a process
// computes in: parameters and float buffers rest in f32 also where their tensors hold 16 bits at
// the time of a commit. So a process may go on in another dtype than the one before it.

import { byteSize, type DType, fromF32Array, isFloat, toF32Array } from '@shardweave/dtypes';
import type { Device, RandomState, Tensor } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { StoreUse } from './store-use.js';

/** What tells a flat parameter from others at rest; a FlatParameter has all of it. */
export interface DescribedFlat {
  readonly name: string;
  readonly form: string;
  readonly parameters: readonly { readonly path: string; readonly tensor: Tensor }[];
}

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
  /** Its flat parameters. A stored model with others is another model. */
  readonly flats: readonly DescribedFlat[];
  /** What else tells the model from others, such as its rank, one per line. Default: nothing. */
  marks?(): readonly string[];
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
  #leave: () => void = () => {};

  constructor(options: StoredModelOptions) {
    this.#options = options;
  }

  /**
   * Takes the model's place in the store, before any of its flats does: reads what is there or
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

  /** Leaves the place in the store. What is stored there stays. */
  close(): void {
    this.#leave();
    this.#opening = undefined;
  }

  async #open(): Promise<void> {
    const { use, name: own, resume, device } = this.#options;
    const head = await this.#readHead();
    if (resume === true) {
      this.#requireSame(head);
      for (const [name, { storage, offset, size, dtype }] of this.#options.buffers()) {
        const bytes = new Uint8Array(size * byteSize(formOf(dtype)));
        await use.store.read(this.#bufferKey(name), bytes);
        const values = isFloat(dtype) ? fromF32Array(toF32Array(bytes, 'f32'), dtype) : bytes;
        storage.write(values, offset * byteSize(dtype));
      }
      if (!device.random.hasBegun) {
        device.random.restore(head!.random);
      }
    } else {
      if (resume === undefined && head !== undefined && head.numSteps > 0) {
        throw new OptimizerError(
          `resume: expected no trained model under '${own}' in the store, got one after ${head.numSteps} steps, which would be lost. Go on from it (resume: true), or begin anew in its place (resume: false).`,
        );
      }
      await use.clear(own);
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
        `resume: expected a model under '${this.#options.name}' in the store, got none. Resume the same model on the same ranks, or begin anew (resume: false).`,
      );
    }
    const lines = this.#describe();
    const count = Math.max(lines.length, head.lines.length);
    for (let i = 0; i < count; i++) {
      if (lines[i] === head.lines[i]) {
        continue;
      }
      throw new OptimizerError(
        `resume: expected the model that the store has under '${this.#options.name}': ${head.lines[i] ?? 'no more'}. Got ${lines[i] ?? 'no more'}. Resume the same model on the same ranks, or begin anew (resume: false).`,
      );
    }
  }

  async #write(): Promise<void> {
    const { use, device } = this.#options;
    if (device.isDisposed) {
      return; // the names are free for another model, as StoreUse.claim says
    }
    const writes = this.#options.buffers().map(async ([name, buffer]) => {
      const bytes = await buffer.toBytes();
      const { dtype } = buffer;
      const values = isFloat(dtype) ? fromF32Array(toF32Array(bytes, dtype), 'f32') : bytes;
      await use.store.write(this.#bufferKey(name), values);
    });
    const head: Head = {
      lines: this.#describe(),
      numSteps: this.#options.numSteps(),
      random: device.random.state(),
    };
    const text = JSON.stringify(head).padEnd(JSON.stringify(head.lines).length + ROOM_BYTES);
    await Promise.all([...writes, use.store.write(this.#headKey, new TextEncoder().encode(text))]);
  }

  /** The model's parts, one per line. See Note [forms at rest]. */
  #describe(): string[] {
    const { marks, flats, buffers } = this.#options;
    return [
      ...(marks?.() ?? []),
      ...flats.map(({ name, form, parameters }) => {
        const list = parameters.map(({ path, tensor }) => `${path} [${tensor.shape.join(', ')}]`);
        return `${name} (${form}): ${list.join(', ')}`;
      }),
      ...buffers().map(([name, { dtype, shape }]) => {
        return `buffer ${name} ${formOf(dtype)} [${shape.join(', ')}]`;
      }),
    ];
  }

  get #headKey(): string {
    return `${this.#options.name}/head`;
  }

  #bufferKey(name: string): string {
    return `${this.#options.name}/buffer/${name}`;
  }
}

/** The dtype in which a buffer rests; see Note [forms at rest]. */
function formOf(dtype: DType): DType {
  return isFloat(dtype) ? 'f32' : dtype;
}

/**
 * Room for names and for numbers of up to 16 digits. The head is padded by it, so that it keeps its
 * length in later steps.
 */
const ROOM_BYTES = 192;
