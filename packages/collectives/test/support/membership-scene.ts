// A coordinator whose members all say what a test lets them say, without sockets and on a clock
// that the test moves.

import { Coordinator } from '../../src/membership/coordinator.js';
import type { CoordinatorOptions } from '../../src/membership/coordinator-options.js';
import type { Said, Table, Told } from '../../src/membership/messages.js';
import type { Word } from '../../src/membership/roster.js';

export class MembershipScene {
  readonly coordinator: Coordinator<null>;
  readonly #told = new Map<number, Told<null>[]>();
  nowMs = 0;

  constructor(options: CoordinatorOptions) {
    this.coordinator = new Coordinator<null>(options, 0);
  }

  say(from: number, said: Said<null>): void {
    this.#take(this.coordinator.hear(from, said, this.nowMs));
  }

  hangUp(from: number): void {
    this.#take(this.coordinator.gone(from, this.nowMs));
  }

  silence(id: number, isSilent: boolean): void {
    this.#take(this.coordinator.silence(id, isSilent, this.nowMs));
  }

  pass(ms: number): void {
    this.nowMs += ms;
    this.#take(this.coordinator.tick(this.nowMs));
  }

  /** The types of what was told over a connection since the last call. */
  heard(connection: number): readonly string[] {
    const told = this.#told.get(connection) ?? [];
    this.#told.delete(connection);
    return told.map(({ type }) => type);
  }

  /** The ids that were told as lost over a connection, since the last call of `heard`. */
  lost(connection: number): readonly number[] {
    return this.#told.get(connection)!.flatMap((told) => (told.type === 'over' ? told.lost : []));
  }

  /** The last table that was told over a connection. */
  table(connection: number): Table<null> {
    return this.#told.get(connection)!.findLast((told) => told.type === 'table')!;
  }

  /** Lets these come, each over the connection of its own number, and stop at these steps. */
  come(...steps: readonly number[]): void {
    for (const [connection, step] of steps.entries()) {
      this.say(connection, { type: 'here', address: null, told: 0 });
      this.say(connection, { type: 'edge', hasState: false, epoch: 0, step, note: `at ${step}` });
    }
  }

  /** Lets all of the table link to each other, apart from pairs that have no path. */
  link(epoch: number, ids: readonly number[], isCut = (_a: number, _b: number) => false): void {
    for (const id of ids) {
      const peers = ids.filter((peer) => peer !== id && !isCut(peer, id));
      this.say(id, { type: 'linked', epoch, peers });
    }
  }

  #take(words: readonly Word<null>[]): void {
    for (const { to, told } of words) {
      this.#told.set(to, [...(this.#told.get(to) ?? []), told]);
    }
  }
}
