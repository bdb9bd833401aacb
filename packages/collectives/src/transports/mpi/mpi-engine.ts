// What every collective over MPI goes through: the exchange of records, which begins within the
// caller's call, and requests in the order that MPI requires. Nothing here rejects: a failure ends
// the job, and with it every call; whatever was waiting stays so.

import type { Call } from '../../endpoint/call.js';
import type { Endpoint } from '../../endpoint/endpoint.js';
import type { CallOrder } from './call-order.js';
import type { CallRecords } from './call-records.js';
import { MpiGroup } from './mpi-group.js';
import type { HandleArray, MpiLibrary } from './mpi-library.js';
import type { Progress } from './progress.js';

/** The first collective of each group to which a rank that leaves does not contribute any more. */
export type Unserved = Readonly<Record<string, number>>;

/** Asks whether a rank has called that collective. */
export interface Question {
  readonly group: string;
  readonly sequence: number;
}

export interface MpiEngineOptions {
  readonly mpi: MpiLibrary;
  readonly progress: Progress;
  readonly endpoint: Endpoint;
  /** Resolves with those world ranks among `members` that have not called. */
  ask(members: readonly number[], question: Question): Promise<readonly number[]>;
}

/**
 * The pieces of one operation. `begin` makes the MPI call and returns whatever MPI needs until its
 * end.
 */
export interface Pieces {
  readonly numPieces: number;
  isReady?(piece: number): Promise<unknown> | undefined;
  begin(piece: number, request: HandleArray): unknown;
  /** Runs after the piece's request has ended. */
  finish?(piece: number): Promise<void>;
}

const NEVER = new Promise<never>(() => {});

export class MpiEngine {
  readonly mpi: MpiLibrary;
  readonly #options: MpiEngineOptions;
  readonly #groups = new Map<string, MpiGroup>();
  readonly #left = new Map<number, Unserved>();
  #isClosed = false;

  constructor(options: MpiEngineOptions) {
    this.mpi = options.mpi;
    this.#options = options;
  }

  /**
   * Makes a group's collectives native; `order` has the world ranks in the communicators' order.
   */
  add(id: string, members: readonly number[], order: readonly number[], comms: HandleArray): void {
    for (const comm of comms) {
      this.mpi.returnErrors(comm);
    }
    this.#groups.set(id, new MpiGroup(id, members, order, comms));
  }

  serves(group: string): boolean {
    return this.#groups.has(group);
  }

  groupOf(call: Call): MpiGroup {
    return this.#groups.get(call.spec.group)!;
  }

  /**
   * Runs a collective. `riding` travels in the records; `body` gets what rode on all ranks, once
   * all agree.
   */
  async run(
    call: Call,
    riding: Uint8Array,
    body: (agreed: Promise<CallRecords>, group: MpiGroup) => Promise<unknown>,
  ): Promise<void> {
    const group = this.groupOf(call);
    group.enter(call);
    const records = group.takeRecords();
    records.write(call.spec.signature, riding);
    await body(this.#agree(group, call, records), group);
    group.giveRecords(records);
    group.leave(call);
  }

  /** Begins pieces when the operations before have begun theirs and `ready` has resolved. */
  inOrder(
    order: CallOrder,
    call: Call,
    ready: Promise<unknown>,
    pieces: Pieces | Promise<Pieces>,
  ): Promise<void> {
    const work = Promise.all([pieces, ready]).then(([known]) => ({
      numParts: known.numPieces,
      isReady: (piece: number) => known.isReady?.(piece),
      begin: (piece: number) => this.#runPiece(call, known, piece),
    }));
    return order.enter(work);
  }

  hasCalled({ group, sequence }: Question): boolean {
    return this.#groups.get(group)?.hasCalled(sequence) ?? false;
  }

  onPeerLeft(peer: number, unserved: Unserved): void {
    this.#left.set(peer, unserved);
    for (const group of this.#groups.values()) {
      for (const sequence of group.running) {
        this.#expectNobodyLeft(group, sequence);
      }
    }
  }

  /** Stops, and returns what this rank leaves undone. */
  close(): Unserved {
    this.#isClosed = true;
    return Object.fromEntries(
      [...this.#groups].map(([id, { firstUnserved }]) => [id, firstUnserved]),
    );
  }

  #agree(group: MpiGroup, call: Call, records: CallRecords): Promise<CallRecords> {
    const { endpoint } = this.#options;
    const { sequence, members } = call.spec;
    const question = { group: group.id, sequence };
    call.late = () => this.#options.ask(members, question);
    return new Promise((resolve) => {
      const begin = (request: HandleArray) =>
        this.mpi.iallgather(records.own, records.all, group.agreements, request);
      this.#start(begin, () => {
        if (records.isUnanimous) {
          call.progressed();
          resolve(records);
          return;
        }
        // Every rank sees the mismatch, and tells the others what it called.
        const inquiry = { type: 'mismatch', ...question, members, calls: [] } as const;
        endpoint.onControl(endpoint.rank, inquiry);
      });
      this.#expectNobodyLeft(group, sequence);
    });
  }

  async #runPiece(call: Call, pieces: Pieces, piece: number): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#start(
        (request) => pieces.begin(piece, request),
        () => {
          call.progressed();
          resolve();
        },
      );
    });
    try {
      await pieces.finish?.(piece);
    } catch (error) {
      this.#fail(error);
      await NEVER;
    }
  }

  /** Begins a request. `ended` is called when it has ended, unless the job is over by then. */
  #start(begin: (request: HandleArray) => unknown, ended: () => void): void {
    if (this.#isClosed) {
      return;
    }
    try {
      let kept: unknown;
      this.#options.progress.start({
        begin: (request) => {
          kept = begin(request);
        },
        done: () => {
          kept = undefined;
          if (!this.#isClosed) {
            ended();
          }
        },
        keep: () => kept,
      });
    } catch (error) {
      this.#fail(error);
    }
  }

  #expectNobodyLeft(group: MpiGroup, sequence: number): void {
    for (const member of group.members) {
      const unserved = this.#left.get(member)?.[group.id];
      if (unserved !== undefined && unserved <= sequence) {
        this.#options.endpoint.onPeerLost(member, 'it closed the group');
        return;
      }
    }
  }

  #fail(error: unknown): void {
    const { endpoint } = this.#options;
    const reason = error instanceof Error ? error.message : String(error);
    endpoint.fail({ kind: 'aborted', origin: endpoint.rank, reason });
  }
}
