// A coordinator with a clock, and with somebody who carries its words.

import type { Clock } from '../clock.js';
import { Coordinator } from './coordinator.js';
import type { CoordinatorOptions, CoordinatorStatus } from './coordinator-options.js';
import type { Said, Told } from './messages.js';
import type { Word } from './roster.js';

export class CoordinatorHost<Address> {
  readonly #coordinator: Coordinator<Address>;
  readonly #onChange: CoordinatorOptions['onChange'];
  readonly #clock: Clock;
  readonly #send: (to: number, message: Told<Address>) => void;
  #numConnections = 0;
  #stopTimer = () => {};
  #known = '';

  /** @param send carries a word to a connection, and later than at once */
  constructor(
    options: CoordinatorOptions,
    clock: Clock,
    send: (to: number, message: Told<Address>) => void,
  ) {
    this.#coordinator = new Coordinator(options, clock.now());
    this.#onChange = options.onChange;
    this.#clock = clock;
    this.#send = send;
  }

  get status(): CoordinatorStatus {
    return this.#coordinator.status;
  }

  /** The number of a new connection. */
  connect(): number {
    return this.#numConnections++;
  }

  hear(from: number, said: Said<Address>): void {
    this.#tell(this.#coordinator.hear(from, said, this.#clock.now()));
  }

  gone(from: number): void {
    this.#tell(this.#coordinator.gone(from, this.#clock.now()));
  }

  /** Goes on without the member of a connection that has ended for good. */
  lose(from: number, reason: string): void {
    this.#tell(this.#coordinator.lose(from, reason, this.#clock.now()));
  }

  /** Notes that a member has shown no sign of life for some time, or shows one again. */
  silence(id: number, isSilent: boolean): void {
    this.#tell(this.#coordinator.silence(id, isSilent, this.#clock.now()));
  }

  /** Ends the job for all who are there. */
  end(reason: string): void {
    const nowMs = this.#clock.now();
    this.#coordinator.end(reason, nowMs);
    this.#tell(this.#coordinator.tick(nowMs));
  }

  #tell(words: readonly Word<Address>[]): void {
    for (const { to, told } of words) {
      this.#send(to, told);
    }
    this.#stopTimer();
    const { nextTickMs } = this.#coordinator;
    if (nextTickMs < Infinity) {
      this.#stopTimer = this.#clock.setTimer(Math.max(0, nextTickMs - this.#clock.now()), () =>
        this.#tell(this.#coordinator.tick(this.#clock.now())),
      );
    }
    this.#tellChange();
  }

  #tellChange(): void {
    const { status } = this;
    const changes = this.#coordinator.takeChanges();
    const text = JSON.stringify(status);
    if (text !== this.#known || changes.came.length > 0 || changes.gone.length > 0) {
      this.#known = text;
      this.#onChange?.({ ...status, ...changes });
    }
  }
}
