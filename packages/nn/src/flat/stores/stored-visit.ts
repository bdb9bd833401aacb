// One visit of a flat parameter to its device. Its bytes come from the store into host buffers,
// from there to the device part by part, and what changed goes back to the store.

import { byteSize } from '@shardweave/dtypes';
import {
  type Device,
  type DType,
  type Storage,
  sizeClass,
  Tensor,
  type View,
} from '@shardweave/tensor-core';
import type { FlatPart, FlatVisit } from './flat-home.js';
import type { HostBuffers } from './host-buffers.js';
import type { StoredBytes } from './stored-bytes.js';

/**
 * The most bytes of one tensor in a part. Larger parts gain nothing: a kernel over a quarter of
 * these bytes already runs longer than it takes to start.
 */
const PART_BYTES = 32 * 2 ** 20;
/**
 * The fewest bytes of one tensor in a part, however small the device's memory limit is. A step
 * needs room for this much of each of its tensors, or for a whole flat that is smaller.
 */
export const LEAST_PART_BYTES = 64 * 2 ** 10;

/** One stored value that a visit brings. */
export interface VisitValue {
  readonly stored: StoredBytes;
  readonly role: 'param' | 'grad' | { readonly state: string };
  readonly dtype: DType;
  readonly isChanging: boolean;
}

export interface VisitOptions {
  readonly device: Device;
  readonly hostBuffers: HostBuffers;
  /** Elements of each value. */
  readonly elementCount: number;
  readonly values: readonly VisitValue[];
  /** Whether everything comes as one part. */
  readonly isWhole: boolean;
  /**
   * Called when the new values have come back to the host and count from then on. Resolves when the
   * head of the optimizer's state is written.
   */
  keep(): Promise<void>;
}

export class StoredVisit implements FlatVisit {
  readonly #options: VisitOptions;
  /** The host bytes of each value; undefined for zeros, where nothing is stored. */
  readonly #reads: Promise<(Uint8Array | undefined)[]>;
  #bytes: (Uint8Array | undefined)[] | undefined;
  /**
   * The entries of `#bytes` that were read. Buffers that `#bytes` gets later are for what comes
   * back, and hold nothing meaningful before.
   */
  #found: readonly (Uint8Array | undefined)[] = [];
  /** Reads from the device that are queued; they write into `#bytes`. */
  readonly #returns: Promise<unknown>[] = [];
  #isKept = false;

  constructor(options: VisitOptions) {
    this.#options = options;
    this.#reads = this.#readAll();
    this.#reads.catch(() => undefined); // load awaits it, if it is called
  }

  get isKept(): boolean {
    return this.#isKept;
  }

  async load(): Promise<void> {
    this.#bytes = await this.#reads;
    this.#found = [...this.#bytes];
  }

  /**
   * Runs one part after the other, each after the one before has come back. Several parts on their
   * way at once, even of different flats, would hold host memory and queue memory that no pool's
   * limit counts.
   */
  async run(
    use: (part: FlatPart) => void,
    { isChanging }: { readonly isChanging: boolean },
  ): Promise<void> {
    const { elementCount } = this.#options;
    const most = this.#partElements();
    for (let start = 0; start < elementCount; start += most) {
      const part = { start, length: Math.min(most, elementCount - start) };
      await this.#runPart(part, { use, isChanging });
      await Promise.allSettled(this.#returns);
    }
  }

  async #runPart(
    { start, length }: { readonly start: number; readonly length: number },
    options: { use(part: FlatPart): void; readonly isChanging: boolean },
  ): Promise<void> {
    const { device, values } = this.#options;
    const storages: Storage[] = [];
    try {
      for (const [i, { role, dtype }] of values.entries()) {
        const tag = role === 'param' ? 'parameter' : role === 'grad' ? 'gradient' : 'optimizer';
        const storage = device.storage(length, dtype, tag);
        storages.push(storage);
        storage.fill();
        const bytes = this.#found[i];
        if (bytes === undefined) {
          device.backend.run('fill', { out: storage.view(), value: 0 });
        } else {
          await device.backend.whenWritable?.();
          storage.write(placeOf(bytes, start, storage));
        }
      }
      const views = new Map(values.map(({ role }, i) => [role, storages[i]!]));
      const states = values.flatMap(({ role }, i): [string, View][] =>
        typeof role === 'object' ? [[role.state, storages[i]!.view()]] : [],
      );
      options.use({
        start,
        length,
        param: views.get('param')?.view(),
        grad: new Tensor(views.get('grad')!, [length]),
        state: new Map(states),
      });
      if (options.isChanging) {
        this.#takeBack(start, storages);
      }
    } finally {
      for (const storage of storages) {
        storage.release(); // safe: the queued reads run before any later use of the memory
      }
    }
  }

  #takeBack(start: number, storages: readonly Storage[]): void {
    const { hostBuffers, values } = this.#options;
    for (const [i, { stored, isChanging }] of values.entries()) {
      if (!isChanging) {
        continue;
      }
      this.#bytes![i] ??= hostBuffers.take(stored.byteLength);
      const into = placeOf(this.#bytes![i]!, start, storages[i]!);
      const read = storages[i]!.read(0, into.byteLength, into);
      read.catch(() => undefined); // store awaits it, unless the visit is dropped
      this.#returns.push(read);
    }
  }

  async store(): Promise<void> {
    const { values, keep } = this.#options;
    try {
      throwFirst(await Promise.allSettled(this.#returns));
      this.#isKept = true;
      const writes = values.map(({ stored, isChanging }, i) =>
        isChanging ? stored.write(this.#bytes![i]!) : undefined,
      );
      throwFirst(await Promise.allSettled([...writes, keep()]));
    } finally {
      this.#give();
    }
  }

  drop(): void {
    if (this.#bytes !== undefined && this.#returns.length === 0) {
      this.#give();
      return;
    }
    void this.#reads.then(
      async (bytes) => {
        this.#bytes = bytes;
        await Promise.allSettled(this.#returns);
        this.#give();
      },
      () => undefined,
    );
  }

  /** Reads all values. If one read fails, all buffers go back once the last read has settled. */
  async #readAll(): Promise<(Uint8Array | undefined)[]> {
    const { hostBuffers, values } = this.#options;
    const taken = values.map(({ stored }) =>
      stored.exists ? hostBuffers.take(stored.byteLength) : undefined,
    );
    const reads = await Promise.allSettled(
      taken.map((bytes, i) => bytes && values[i]!.stored.read(bytes)),
    );
    try {
      throwFirst(reads);
    } catch (error) {
      this.#bytes = taken;
      this.#give();
      throw error;
    }
    return taken;
  }

  #give(): void {
    for (const bytes of this.#bytes ?? []) {
      if (bytes !== undefined) {
        this.#options.hostBuffers.give(bytes);
      }
    }
    this.#bytes = [];
  }

  /**
   * The elements of a part: as many as the device has room for. They are a power of two, as the
   * pool's sizes are.
   */
  #partElements(): number {
    const { device, elementCount, values, isWhole } = this.#options;
    if (isWhole) {
      return elementCount;
    }
    const { limitBytes, inUseBytes } = device.pool;
    // Kernels step 16-bit parameters in a copy.
    const dtypes: DType[] = values.map(({ dtype }) => dtype);
    const copies: DType[] = dtypes.filter((dtype) => dtype !== 'f32').map(() => 'f32');
    const needs = (elements: number) =>
      [...dtypes, ...copies].reduce(
        (sum, dtype) => sum + sizeClass(Math.min(elements, elementCount) * byteSize(dtype)),
        inUseBytes,
      );
    let elements = PART_BYTES / 4;
    while (elements * 4 > LEAST_PART_BYTES && needs(elements) > limitBytes) {
      elements /= 2;
    }
    return elements;
  }
}

/**
 * The bytes of a part that begins at element `start`. The length is the storage's, which ends on a
 * whole word even for an odd number of 16-bit values.
 */
function placeOf(bytes: Uint8Array, start: number, { dtype, byteLength }: Storage): Uint8Array {
  const first = start * byteSize(dtype);
  return bytes.subarray(first, first + byteLength);
}

function throwFirst(outcomes: readonly PromiseSettledResult<unknown>[]): void {
  const failed = outcomes.find((outcome) => outcome.status === 'rejected');
  if (failed !== undefined) {
    throw failed.reason;
  }
}
