// An MPI library, through koffi: the calls that the transport makes, all on the thread that called
// `init`. None blocks but `init` and `finalize`. Memory that is handed to a call which begins
// something must stay in place until that has ended, so the caller has to keep it referenced.
// Counts are in bytes.

import type { LibraryHandle } from 'koffi';
import type { MpiAbi, MpiHandle } from './mpi-abi.js';

/** Handles that MPI writes, of 8 bytes (Open MPI) or 4 (MPICH). */
export type HandleArray = BigUint64Array | Int32Array;

/** Counts and offsets in bytes, one for each rank of the communicator. */
export type Counts = Int32Array;

/**
 * A call to MPI returned an error. The communicators of this package return errors rather than
 * abort.
 */
class MpiCallError extends Error {
  constructor(name: string, text: string) {
    super(`${name} failed: ${text}`);
    this.name = 'MpiCallError';
  }
}

/** The level of thread support: all calls come from one thread. */
const THREAD_FUNNELED = 1;

/**
 * The larger of the two libraries' own limits: 256 and 512 for errors, 256 and 8192 for the
 * version.
 */
const MAX_ERROR_BYTES = 512;
const MAX_VERSION_BYTES = 8192;

type MpiFunction = (...args: unknown[]) => void;

export class MpiLibrary {
  readonly abi: MpiAbi;
  readonly #word = new Int32Array(1);
  readonly #describe: (...args: unknown[]) => number;
  readonly #functions: Readonly<Record<FunctionName, MpiFunction>>;

  constructor(library: LibraryHandle, abi: MpiAbi) {
    this.abi = abi;
    const bind = (name: string, types: string) =>
      library.func(
        name,
        'int',
        types.split(' ').flatMap((type) => C_TYPES[type]?.(abi) ?? []),
      );
    this.#describe = bind('MPI_Error_string', 'int buffer buffer');
    const functions: Partial<Record<FunctionName, MpiFunction>> = {};
    for (const [name, types] of Object.entries(FUNCTIONS) as [FunctionName, string][]) {
      const call = bind(`MPI_${name}`, types);
      functions[name] = (...args) => {
        const code: number = call(...args);
        if (code !== 0) {
          throw new MpiCallError(`MPI_${name}`, this.#textOf(code));
        }
      };
    }
    this.#functions = functions as Record<FunctionName, MpiFunction>;
  }

  // ------------------------------------------------------------- life and shape

  get isInitialized(): boolean {
    this.#functions.Initialized(this.#word);
    return this.#word[0] !== 0;
  }

  get isFinalized(): boolean {
    this.#functions.Finalized(this.#word);
    return this.#word[0] !== 0;
  }

  /** Starts MPI. Blocks until all ranks of the job have started. */
  init(): void {
    this.#functions.Init_thread(null, null, THREAD_FUNNELED, this.#word);
  }

  /** Ends MPI. Blocks until all ranks of the job have called it. */
  finalize(): void {
    this.#functions.Finalize();
  }

  rankOf(comm: MpiHandle): number {
    this.#functions.Comm_rank(comm, this.#word);
    return this.#word[0]!;
  }

  sizeOf(comm: MpiHandle): number {
    this.#functions.Comm_size(comm, this.#word);
    return this.#word[0]!;
  }

  /** The library's version, for example `Open MPI v4.1.4, package: ...`. */
  version(): string {
    const text = new Uint8Array(MAX_VERSION_BYTES);
    this.#functions.Get_library_version(text, this.#word);
    return new TextDecoder().decode(text.subarray(0, this.#word[0]));
  }

  /** An array for handles, each of which stands for no request. */
  handles(length: number): HandleArray {
    const { requestNull } = this.abi;
    return typeof requestNull === 'bigint'
      ? new BigUint64Array(length).fill(requestNull)
      : new Int32Array(length).fill(requestNull);
  }

  // ------------------------------------------------------------- communicators

  /** Duplicates a communicator, as a collective: `into` gets it when the request has ended. */
  idup(comm: MpiHandle, into: HandleArray, request: HandleArray): void {
    this.#functions.Comm_idup(comm, into, request);
  }

  /** Makes errors in calls on the communicator return instead of ending the job. */
  returnErrors(comm: MpiHandle): void {
    this.#functions.Comm_set_errhandler(comm, this.abi.errorsReturn);
  }

  free(comm: HandleArray): void {
    this.#functions.Comm_free(comm);
  }

  // -------------------------------------------------------------------- messages

  isend(bytes: Uint8Array, to: number, tag: number, comm: MpiHandle, request: HandleArray): void {
    this.#functions.Isend(bytes, bytes.byteLength, this.abi.byte, to, tag, comm, request);
  }

  /** Receives a message of at most the length of `bytes`; `from` may be `abi.anySource`. */
  irecv(bytes: Uint8Array, from: number, tag: number, comm: MpiHandle, request: HandleArray): void {
    this.#functions.Irecv(bytes, bytes.byteLength, this.abi.byte, from, tag, comm, request);
  }

  cancel(request: HandleArray): void {
    this.#functions.Cancel(request);
  }

  /**
   * Makes progress. `indices` then begins with the places of the requests that have ended, which
   * hold no request any more. Returns their number.
   */
  testSome(requests: HandleArray, indices: Int32Array): number {
    const ignore = this.abi.statusIgnore;
    this.#functions.Testsome(requests.length, requests, this.#word, indices, ignore);
    return Math.max(this.#word[0]!, 0); // MPI_UNDEFINED, below 0, where there are none at all
  }

  // ----------------------------------------------------------------- collectives

  /** Fills `into` with every rank's `bytes`. */
  iallgather(bytes: Uint8Array, into: Uint8Array, comm: MpiHandle, request: HandleArray): void {
    const { byte } = this.abi;
    const { byteLength } = bytes;
    this.#functions.Iallgather(bytes, byteLength, byte, into, byteLength, byte, comm, request);
  }

  /** Gathers in place: each rank's part already lies where it belongs in `bytes`. */
  iallgatherv(
    bytes: Uint8Array,
    counts: Counts,
    offsets: Counts,
    comm: MpiHandle,
    request: HandleArray,
  ): void {
    const { byte, inPlace } = this.abi;
    this.#functions.Iallgatherv(inPlace, 0, byte, bytes, counts, offsets, byte, comm, request);
  }

  ialltoallv(from: CountedBytes, into: CountedBytes, comm: MpiHandle, request: HandleArray): void {
    const { byte } = this.abi;
    this.#functions.Ialltoallv(
      ...[from.bytes, from.counts, from.offsets, byte],
      ...[into.bytes, into.counts, into.offsets, byte, comm, request],
    );
  }

  ibcast(bytes: Uint8Array, root: number, comm: MpiHandle, request: HandleArray): void {
    this.#functions.Ibcast(bytes, bytes.byteLength, this.abi.byte, root, comm, request);
  }

  /**
   * Gathers at the root. `into` is given on the root alone, whose own part already lies there; it
   * is null elsewhere.
   */
  igatherv(
    bytes: Uint8Array,
    into: CountedBytes | null,
    root: number,
    comm: MpiHandle,
    request: HandleArray,
  ): void {
    const { byte, inPlace } = this.abi;
    const source = into === null ? bytes : inPlace;
    this.#functions.Igatherv(
      ...[source, bytes.byteLength, byte, into?.bytes ?? null],
      ...[into?.counts ?? null, into?.offsets ?? null, byte, root, comm, request],
    );
  }

  /** Reduces in place, by MPI's own sums, whose order is MPI's. */
  iallreduce(
    bytes: Uint8Array,
    elements: { readonly count: number; readonly type: MpiHandle; readonly op: MpiHandle },
    comm: MpiHandle,
    request: HandleArray,
  ): void {
    const { count, type, op } = elements;
    this.#functions.Iallreduce(this.abi.inPlace, bytes, count, type, op, comm, request);
  }

  #textOf(code: number): string {
    const text = new Uint8Array(MAX_ERROR_BYTES);
    const length = new Int32Array(1);
    this.#describe(code, text, length);
    return new TextDecoder().decode(text.subarray(0, length[0]));
  }
}

/** Memory with the parts of all ranks of a communicator, and their places in it. */
export interface CountedBytes {
  readonly bytes: Uint8Array;
  readonly counts: Counts;
  readonly offsets: Counts;
}

const C_TYPES: Readonly<Record<string, (abi: MpiAbi) => string>> = {
  int: () => 'int',
  buffer: () => 'void *',
  handle: (abi) => abi.handleType,
};

const FUNCTIONS = {
  Initialized: 'buffer',
  Finalized: 'buffer',
  Init_thread: 'buffer buffer int buffer',
  Finalize: '',
  Get_library_version: 'buffer buffer',
  Comm_rank: 'handle buffer',
  Comm_size: 'handle buffer',
  Comm_idup: 'handle buffer buffer',
  Comm_set_errhandler: 'handle handle',
  Comm_free: 'buffer',
  Isend: 'buffer int handle int int handle buffer',
  Irecv: 'buffer int handle int int handle buffer',
  Cancel: 'buffer',
  Testsome: 'int buffer buffer buffer buffer',
  Iallgather: 'buffer int handle buffer int handle handle buffer',
  Iallgatherv: 'buffer int handle buffer buffer buffer handle handle buffer',
  Ialltoallv: 'buffer buffer buffer handle buffer buffer buffer handle handle buffer',
  Ibcast: 'buffer int handle int handle buffer',
  Igatherv: 'buffer int handle buffer buffer buffer handle int handle buffer',
  Iallreduce: 'buffer buffer int handle handle handle buffer',
} as const;

type FunctionName = keyof typeof FUNCTIONS;
