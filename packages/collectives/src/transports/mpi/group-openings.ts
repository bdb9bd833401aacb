// Opens groups within a split: communicators are made in the place that the split took among its
// parent's operations, because MPI requires the same order on all ranks.

import type { Call } from '../../endpoint/call.js';
import type { MpiEngine, Pieces } from './mpi-engine.js';
import { COMMS_A_GROUP } from './mpi-group.js';

interface Opening {
  readonly begin: (pieces: Pieces) => void;
  readonly done: Promise<void>;
}

export class GroupOpenings {
  readonly #engine: MpiEngine;
  readonly #openings = new Map<Call, Opening>();

  constructor(engine: MpiEngine) {
    this.#engine = engine;
  }

  /** Takes the place of the split among its parent's operations. */
  reserve(call: Call): void {
    let begin: (pieces: Pieces) => void = () => {};
    const pieces = new Promise<Pieces>((resolve) => {
      begin = resolve;
    });
    const { dataOrder } = this.#engine.groupOf(call);
    const done = this.#engine.inOrder(dataOrder, call, Promise.resolve(), pieces);
    this.#openings.set(call, { begin, done });
  }

  /**
   * Opens a group. One that has all the parent's ranks gets communicators of its own; others go by
   * messages.
   */
  async open(call: Call, id: string, members: readonly number[]): Promise<void> {
    const { mpi } = this.#engine;
    const parent = this.#engine.groupOf(call);
    const isWhole = members.length === parent.members.length;
    const comms = mpi.handles(COMMS_A_GROUP);
    const opening = this.#openings.get(call)!;
    this.#openings.delete(call);
    opening.begin({
      numPieces: isWhole ? COMMS_A_GROUP : 0,
      begin: (piece, request) => {
        mpi.idup(parent.data, comms.subarray(piece, piece + 1), request);
        return comms;
      },
    });
    await opening.done;
    if (isWhole) {
      this.#engine.add(id, members, parent.order, comms);
    }
  }
}
