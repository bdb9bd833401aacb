// What MPI needs for one group of ranks: communicators, the order of what runs on each, and which
// of its collectives are running. Ranks are group ranks here; MPI's own order is that of the
// parent.

import type { Call } from '../../endpoint/call.js';
import { CallOrder } from './call-order.js';
import { CallRecords } from './call-records.js';
import type { MpiHandle } from './mpi-abi.js';
import type { HandleArray } from './mpi-library.js';

/**
 * The communicators of a group: one for records, one for data once all agree, and one for the
 * second half of all-reduces.
 */
export const COMMS_A_GROUP = 3;

export class MpiGroup {
  readonly id: string;
  /** The world ranks in group order. */
  readonly members: readonly number[];
  /** The place of each group rank in the communicators. */
  readonly places: readonly number[];
  /** The world ranks in the communicators' order. */
  readonly order: readonly number[];
  readonly agreements: MpiHandle;
  readonly data: MpiHandle;
  readonly second: MpiHandle;
  readonly dataOrder = new CallOrder();
  readonly secondOrder = new CallOrder();
  /** The sequence numbers of the running collectives. */
  readonly running = new Set<number>();
  #nextSequence = 0;
  readonly #spare: CallRecords[] = [];

  constructor(
    id: string,
    members: readonly number[],
    order: readonly number[],
    comms: HandleArray,
  ) {
    this.id = id;
    this.members = members;
    this.order = order;
    this.places = members.map((member) => order.indexOf(member));
    this.agreements = comms[0]!;
    this.data = comms[1]!;
    this.second = comms[2]!;
  }

  /** Notes that a call has begun. */
  enter(call: Call): void {
    const { sequence } = call.spec;
    this.running.add(sequence);
    this.#nextSequence = Math.max(this.#nextSequence, sequence + 1);
  }

  /** Notes that a call has ended. */
  leave(call: Call): void {
    this.running.delete(call.spec.sequence);
  }

  hasCalled(sequence: number): boolean {
    return sequence < this.#nextSequence;
  }

  /**
   * The first collective that this rank has not seen to its end; it does not contribute to that and
   * later ones.
   */
  get firstUnserved(): number {
    return Math.min(this.#nextSequence, ...this.running);
  }

  takeRecords(): CallRecords {
    return this.#spare.pop() ?? new CallRecords(this.members.length);
  }

  giveRecords(records: CallRecords): void {
    this.#spare.push(records);
  }
}
