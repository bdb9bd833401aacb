// What one optimizer keeps for one flat in a store: its moments, and a head. The head says which
// optimizer they belong to, and how many steps each run of elements has seen.

import { OptimizerError } from '../../errors.js';
import type { FlatStateBytes, StateRun } from '../layout/flat-state.js';
import type { ByteStore, PinnedBytes } from './byte-store.js';
import { StoredBytes } from './stored-bytes.js';

/** Says whose state it is. A later process goes on with it only if its own signature is equal. */
export interface StateSignature {
  /** The optimizer's class, such as AdamW. */
  readonly optimizer: string;
  /**
   * The elements of the flat that the optimizer steps, ascending: [[0, 64, 0], [128, 64, 1]] are 0
   * to 63 in its group 0, and 128 to 191 in its group 1.
   */
  readonly ranges: readonly (readonly [start: number, length: number, group: number])[];
}

interface Head extends StateSignature {
  /** See RestingState.numSteps. */
  readonly numStepsBefore?: number;
  readonly runs: readonly StateRun[];
  /** The names of the tensors that have values. */
  readonly tensors: readonly string[];
}

/** The key of a head, behind the state's own prefix. */
export const HEAD = 'state';

/** The state of one optimizer for one flat, kept as bytes in a store. */
export class RestingState {
  readonly #store: ByteStore;
  readonly #prefix: string;
  readonly #byteLength: number;
  readonly #head: StoredBytes;
  readonly #tensors = new Map<string, StoredBytes>();
  #signature: StateSignature;
  #runs: readonly StateRun[] | undefined;
  #numStepsBefore: number;
  /** The names of the tensors that the store has from an earlier process. */
  #taken: ReadonlySet<string> = new Set();

  /**
   * @param options.byteLength the size of each tensor
   * @param options.numStepsBefore the steps that its elements have seen by other optimizers
   */
  constructor(
    store: ByteStore,
    prefix: string,
    options: {
      readonly signature: StateSignature;
      readonly byteLength: number;
      readonly numStepsBefore: number;
    },
  ) {
    this.#store = store;
    this.#prefix = prefix;
    this.#byteLength = options.byteLength;
    this.#signature = options.signature;
    this.#numStepsBefore = options.numStepsBefore;
    this.#head = new StoredBytes(store, `${prefix}${HEAD}`, { byteLength: 0, resume: false });
  }

  /**
   * Reads the state that an earlier process left under `prefix`.
   * @throws {OptimizerError} for a head that lacks the steps of each run
   */
  static async resume(store: ByteStore, prefix: string, byteLength: number): Promise<RestingState> {
    const bytes = new Uint8Array(store.byteLength(`${prefix}${HEAD}`)!);
    await store.read(`${prefix}${HEAD}`, bytes);
    const head = JSON.parse(new TextDecoder().decode(bytes)) as Head;
    const { runs, tensors, numStepsBefore = 0, ...signature } = head;
    if (!Array.isArray(runs)) {
      throw new OptimizerError(
        `resume: expected the steps of each part ('runs') in '${prefix}${HEAD}' of the store, got ${Object.keys({ tensors, ...signature }).join(', ')}. Another version of @shardweave/nn wrote it: go on with that one and save a checkpoint, or begin anew (resume: false).`,
      );
    }
    const state = new RestingState(store, prefix, { signature, byteLength, numStepsBefore });
    state.#runs = runs;
    state.#taken = new Set(tensors);
    return state;
  }

  get signature(): StateSignature {
    return this.#signature;
  }

  /** How many steps each run of elements has seen; undefined before the first step. */
  get runs(): readonly StateRun[] | undefined {
    return this.#runs;
  }

  /**
   * The most steps that any of its elements has seen, by this optimizer or by others whose state it
   * replaced; undefined where there was none.
   */
  get numSteps(): number | undefined {
    const most = Math.max(0, ...(this.#runs ?? []).map(({ step }) => step));
    return this.#numStepsBefore + most || undefined;
  }

  /** Whether a tensor has values. A tensor without values stands for zeros. */
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

  /**
   * Notes how many steps each run has seen, and that the tensors `names` have values. Resolves when
   * the store has the new head.
   */
  async setRuns(runs: readonly StateRun[], names: Iterable<string>): Promise<void> {
    this.#runs = runs;
    const numStepsBefore = this.#numStepsBefore;
    const head: Head = { runs, tensors: [...names], numStepsBefore, ...this.#signature };
    const last = runs.map((run) => ({ ...run, step: Number.MAX_SAFE_INTEGER }));
    const most = JSON.stringify({ ...head, runs: last }).length;
    const text = JSON.stringify(head).padEnd(most); // its size stays as step numbers grow
    await this.#head.write(new TextEncoder().encode(text));
  }

  /** The f32 bytes of a tensor, in a new array. */
  async read(name: string): Promise<Uint8Array> {
    const stored = this.tensor(name);
    const bytes = new Uint8Array(stored.byteLength);
    if (stored.exists) {
      await stored.read(bytes);
    }
    return bytes;
  }

  /** Keeps a tensor's present bytes readable; undefined where the store can't. */
  pin(name: string): Promise<PinnedBytes | undefined> {
    return this.tensor(name).pin();
  }

  /** Replaces the whole state. Tensors that are not given have no values afterwards. */
  async write({ runs, tensors }: FlatStateBytes): Promise<void> {
    for (const name of this.#taken) {
      this.tensor(name);
    }
    this.#numStepsBefore = 0; // what is loaded counts its own steps
    const gone = [...this.#tensors].filter(([name]) => !tensors.has(name));
    await Promise.all([
      ...[...tensors].map(([name, bytes]) => this.tensor(name).write(bytes)),
      ...gone.map(([, stored]) => stored.remove()),
      this.setRuns(runs, tensors.keys()),
    ]);
  }

  /** Removes the state from the store. */
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

/** Whether one optimizer may go on with the state of the other. */
export function isSameSignature(a: StateSignature, b: StateSignature): boolean {
  return a.optimizer === b.optimizer && a.ranges.join(';') === b.ranges.join(';');
}

/** Whether there is an element that both optimizers step. */
export function isOverlapping(a: StateSignature, b: StateSignature): boolean {
  return a.ranges.some(([start, length]) =>
    b.ranges.some(([other, count]) => start < other + count && other < start + length),
  );
}

/** @throws {OptimizerError} always, with the signatures that the store has and the one asked for */
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

/** A signature as text: AdamW of elements 0 to 63 (group 0), 128 to 191 (group 1). */
function textOf({ optimizer, ranges }: StateSignature): string {
  const parts = ranges.map(
    ([start, length, group]) => `${start} to ${start + length - 1} (group ${group})`,
  );
  return `${optimizer} of elements ${parts.join(', ') || 'none'}`;
}
