// What one optimizer keeps of one flat in a store: its moments, and a head that says how many steps
// each part of them has seen and whose they are.

import { OptimizerError } from '../../errors.js';
import type { FlatStateBytes, StateRun } from '../../optim/flat-state.js';
import type { ByteStore, PinnedBytes } from './byte-store.js';
import { StoredBytes } from './stored-bytes.js';

/** Whose state it is: what has to be equal for another process to go on with it. */
export interface StateSignature {
  /** Its class, such as AdamW. */
  readonly optimizer: string;
  /** [start, length, group] of the flat's elements that are the optimizer's, ascending. */
  readonly ranges: readonly (readonly [start: number, length: number, group: number])[];
}

interface Head extends StateSignature {
  readonly runs: readonly StateRun[];
  /** Tensors that have values. */
  readonly tensors: readonly string[];
}

/** The key of a head, behind the state's own prefix. */
const HEAD = 'state';

/** The state of one optimizer for one flat, kept as bytes in a store. */
export class RestingState {
  readonly #store: ByteStore;
  readonly #prefix: string;
  readonly #byteLength: number;
  readonly #head: StoredBytes;
  readonly #tensors = new Map<string, StoredBytes>();
  #signature: StateSignature;
  #runs: readonly StateRun[] | undefined;
  /** Tensors that the store has from an earlier process. */
  #taken: ReadonlySet<string> = new Set();

  /** @param options.byteLength of a tensor */
  constructor(
    store: ByteStore,
    prefix: string,
    options: { readonly signature: StateSignature; readonly byteLength: number },
  ) {
    this.#store = store;
    this.#prefix = prefix;
    this.#byteLength = options.byteLength;
    this.#signature = options.signature;
    this.#head = new StoredBytes(store, `${prefix}${HEAD}`, { byteLength: 0, resume: false });
  }

  /**
   * One that an earlier process left; undefined where there is none.
   * @throws {OptimizerError} for one without the steps of each part, as the first versions wrote it
   */
  static async resume(
    store: ByteStore,
    prefix: string,
    byteLength: number,
  ): Promise<RestingState | undefined> {
    const length = store.byteLength(`${prefix}${HEAD}`);
    if (length === undefined) {
      return undefined;
    }
    const bytes = new Uint8Array(length);
    await store.read(`${prefix}${HEAD}`, bytes);
    const { runs, tensors, ...signature } = JSON.parse(new TextDecoder().decode(bytes)) as Head;
    if (!Array.isArray(runs)) {
      throw new OptimizerError(
        `resume: expected the steps of each part ('runs') in '${prefix}${HEAD}' of the store, got ${Object.keys({ tensors, ...signature }).join(', ')}. Another version of @shardweave/nn wrote it: go on with that one and save a checkpoint, or begin anew (resume: false).`,
      );
    }
    const state = new RestingState(store, prefix, { signature, byteLength });
    state.#runs = runs;
    state.#taken = new Set(tensors);
    return state;
  }

  get signature(): StateSignature {
    return this.#signature;
  }

  /** Steps that it has seen; undefined where none was stored. */
  get runs(): readonly StateRun[] | undefined {
    return this.#runs;
  }

  /** Whether a tensor has values; one without stands for zeros. */
  has(name: string): boolean {
    return this.tensor(name).exists;
  }

  /** @internal */
  tensor(name: string): StoredBytes {
    let stored = this.#tensors.get(name);
    if (stored === undefined) {
      const options = { byteLength: this.#byteLength, resume: this.#taken.has(name) };
      stored = new StoredBytes(this.#store, `${this.#prefix}${name}`, options);
      this.#tensors.set(name, stored);
    }
    return stored;
  }

  /** From here on it has seen `runs`, and `names` have values. Resolves when the store knows. */
  async setRuns(runs: readonly StateRun[], names: Iterable<string>): Promise<void> {
    this.#runs = runs;
    const head: Head = { runs, tensors: [...names], ...this.#signature };
    const last = runs.map((run) => ({ ...run, step: Number.MAX_SAFE_INTEGER }));
    const most = JSON.stringify({ ...head, runs: last }).length;
    const text = JSON.stringify(head).padEnd(most); // so that a later step needs no more room
    await this.#head.write(new TextEncoder().encode(text));
  }

  /** f32 bytes of a tensor; the caller's. */
  async read(name: string): Promise<Uint8Array> {
    const stored = this.tensor(name);
    const bytes = new Uint8Array(stored.byteLength);
    if (stored.exists) {
      await stored.read(bytes);
    }
    return bytes;
  }

  /** Keeps what a tensor is now; undefined where the store can't. */
  pin(name: string): Promise<PinnedBytes | undefined> {
    return this.tensor(name).pin();
  }

  /** Replaces all of it: tensors that are not given have no values. */
  async write({ runs, tensors }: FlatStateBytes): Promise<void> {
    for (const name of this.#taken) {
      this.tensor(name);
    }
    const gone = [...this.#tensors].filter(([name]) => !tensors.has(name));
    await Promise.all([
      ...[...tensors].map(([name, bytes]) => this.tensor(name).write(bytes)),
      ...gone.map(([, stored]) => stored.remove()),
      this.setRuns(runs, tensors.keys()),
    ]);
  }

  /** Removes it from the store. */
  async remove(): Promise<void> {
    for (const name of this.#taken) {
      this.tensor(name);
    }
    await Promise.all(this.#all.map((stored) => stored.remove()));
  }

  get hasUnsaved(): boolean {
    return this.#all.some(({ isUnsaved }) => isUnsaved);
  }

  async flush(): Promise<void> {
    for (const stored of this.#all) {
      await stored.flush();
    }
  }

  get #all(): StoredBytes[] {
    return [...this.#tensors.values(), this.#head];
  }
}

/** Whether two optimizers are as good as one. */
export function isSameSignature(a: StateSignature, b: StateSignature): boolean {
  return a.optimizer === b.optimizer && a.ranges.join(';') === b.ranges.join(';');
}

/** Whether two optimizers step some element both. */
export function isOverlapping(a: StateSignature, b: StateSignature): boolean {
  return a.ranges.some(([start, length]) =>
    b.ranges.some(([other, count]) => start < other + count && other < start + length),
  );
}

/** @throws {OptimizerError} that says what the store has, and what asks for it */
export function refuseSignature(
  name: string,
  kept: readonly StateSignature[],
  asked: StateSignature,
): never {
  const list = kept.map(textOf).join('; and ');
  throw new OptimizerError(
    `resume: expected the optimizer whose state the store has of '${name}': ${list}. Got ${textOf(asked)}. Make the same optimizer with the same groups, or begin anew (resume: false).`,
  );
}

/** AdamW of elements 0 to 63 (group 0), 128 to 191 (group 1) */
function textOf({ optimizer, ranges }: StateSignature): string {
  const parts = ranges.map(
    ([start, length, group]) => `${start} to ${start + length - 1} (group ${group})`,
  );
  return `${optimizer} of elements ${parts.join(', ') || 'none'}`;
}
