// A member's process in a random schedule: its machine, and what waits on its connection.

import { MemberCore } from '../../src/membership/member-core.js';
import type { Said, Told } from '../../src/membership/messages.js';

/** A member's process, with its connection to the coordinator. */
export class ScheduledProcess {
  readonly core: MemberCore<null>;
  readonly peers = new Set<number>();
  step = 0;
  /** Those who have called the collective that it called last. */
  called: Set<number> | undefined;
  /** The member whose state it has yet to copy, and the step of that. */
  copiesFrom: { readonly id: number; readonly step: number } | undefined;
  isAlive = true;
  isStopped = false;
  /** Whether the member has asked for the next epoch. */
  isWaiting = false;
  connection: number | undefined;
  /** The time since which it has none. */
  aloneMs = 0;
  readonly toCoordinator: Said<null>[] = [];
  readonly toMember: Told<null>[] = [];

  constructor(
    events: (process: ScheduledProcess) => ConstructorParameters<typeof MemberCore<null>>[1],
  ) {
    this.core = new MemberCore<null>(null, events(this));
  }

  get acts(): boolean {
    return this.isAlive && !this.isStopped && this.core.ending === undefined;
  }

  /** Loses its connection, and what waits there. */
  disconnect(nowMs: number): void {
    if (this.connection !== undefined) {
      this.connection = undefined;
      this.aloneMs = nowMs;
      this.toCoordinator.length = 0;
      this.toMember.length = 0;
    }
  }
}
