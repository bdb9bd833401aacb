// One stay of a flat parameter on its device: bytes come from the store into host buffers; from
// there they pass over the device, part by part, and what changed goes back to the store.

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
 * A part has at most so many bytes of one tensor. Larger ones gain nothing, as a kernel of a
 * quarter of it keeps any device busy for longer than its start takes.
 */
const PART_BYTES = 32 * 2 ** 20;
/**
 * A budget makes parts no smaller than this; a step needs so much of each of its tensors, or a
 * whole flat.
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
  /** Whether the whole comes at once. */
  readonly isWhole: boolean;
  /** The new values have come back: they count. Resolves when what goes with them is written. */
  keep(): Promise<void>;
}

export class StoredVisit implements FlatVisit {
  readonly #options: VisitOptions;
  /** Host bytes of each value; undefined where nothing is stored, which means zeros. */
  readonly #reads: Promise<(Uint8Array | undefined)[]>;
  #bytes: (Uint8Array | undefined)[] | undefined;
  /** Those of them that were read; others are made for what comes back, with anything in them. */
  #found: readonly (Uint8Array | undefined)[] = [];
  /** Read-backs that are queued, into the same bytes. */
  readonly #returns: Promise<unknown>[] = [];
  #isKept = false;

  constructor(options: VisitOptions) {
    this.#options = options;
    this.#reads = this.#readAll();
    this.#reads.catch(() => undefined); // seen by load, if it comes to that
  }

  get isKept(): boolean {
    return this.#isKept;
  }

  async load(): Promise<void> {
    this.#bytes = await this.#reads;
    this.#found = [...this.#bytes];
  }

  /**
   * One part after the other, each when the one before has come back, also that of another flat:
   * bytes on their way would take host memory and the queue's beside the buffers, which no pool's
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
        storage.release(); // read-backs are queued before whoever gets the buffers next
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
      read.catch(() => undefined); // seen by store, or given up
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

  /** Where one read fails all buffers are given back, when the last of them has settled. */
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
   * As many as the device has room for, in parts of a power of two, which are the pool's own sizes.
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
 * The bytes of a part that begins at element `start`; the last one of 16-bit values ends in a whole
 * word.
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
