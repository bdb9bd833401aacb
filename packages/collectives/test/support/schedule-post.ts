// The coordinator of a random schedule, which may be started again, its connections and the time.
// What is said on a connection waits there until the schedule delivers it.

import type { SeededRandom } from '@shardweave/collectives/testing';
import { Coordinator } from '../../src/membership/coordinator.js';
import type {
  CoordinatorOptions,
  CoordinatorStatus,
} from '../../src/membership/coordinator-options.js';
import type { Word } from '../../src/membership/roster.js';
import type { EpochRules } from './epoch-rules.js';
import type { ScheduledProcess } from './scheduled-process.js';

/** The time after which a member gives up that has no coordinator. */
const COORDINATOR_MS = 9000;

export interface SchedulePostParts {
  readonly options: CoordinatorOptions;
  readonly random: SeededRandom;
  readonly rules: EpochRules;
  /** All processes; more may come. */
  readonly processes: readonly ScheduledProcess[];
  /** Called with a member that has heard that it is one, and is at no step yet. */
  welcomed(process: ScheduledProcess): void;
}

export class SchedulePost {
  readonly #parts: SchedulePostParts;
  readonly trace: string[] = [];
  #coordinator: Coordinator<null>;
  #nowMs = 0;
  #numConnections = 0;

  constructor(parts: SchedulePostParts) {
    this.#parts = parts;
    this.#coordinator = new Coordinator(parts.options, 0);
  }

  get status(): CoordinatorStatus {
    return this.#coordinator.status;
  }

  say(text: string): void {
    this.trace.push(`${this.#nowMs} ${text}`);
  }

  connect(process: ScheduledProcess): void {
    process.connection = this.#numConnections++;
    process.core.connected();
  }

  hangUp(process: ScheduledProcess): void {
    const { connection } = process;
    if (connection !== undefined) {
      process.disconnect(this.#nowMs);
      this.#send(this.#coordinator.gone(connection, this.#nowMs));
    }
  }

  /** Another coordinator begins, which knows nothing. */
  restart(): void {
    const { rules, processes, options } = this.#parts;
    this.say('the coordinator is started again');
    rules.restarted();
    for (const process of processes) {
      process.disconnect(this.#nowMs);
    }
    this.#coordinator = new Coordinator({ ...options, begin: 'again' }, this.#nowMs);
  }

  /** Brings so many messages, or fewer, over connections that are drawn. */
  deliver(count: number): void {
    const { random, processes, welcomed } = this.#parts;
    for (let i = 0; i < count; i++) {
      const process = random.pick(processes);
      if (process.connection === undefined) {
        if (process.acts) {
          this.connect(process);
        }
      } else if (process.toCoordinator.length > 0 && random.chance(0.5)) {
        const said = process.toCoordinator.shift()!;
        this.say(`${process.core.id ?? 'a newcomer'}: ${JSON.stringify(said)}`);
        this.#send(this.#coordinator.hear(process.connection, said, this.#nowMs));
      } else if (process.toMember.length > 0 && process.acts) {
        const told = process.toMember.shift()!;
        this.say(`   to ${process.core.id ?? 'a newcomer'}: ${JSON.stringify(told)}`);
        process.core.hear(told);
        if (told.type === 'welcome' && !process.isWaiting && process.core.running === undefined) {
          welcomed(process);
        }
      }
    }
  }

  /** Lets time pass. */
  pass(ms: number): void {
    const endMs = this.#nowMs + ms;
    for (;;) {
      const nextMs = Math.max(this.#coordinator.nextTickMs, this.#nowMs);
      if (nextMs > endMs) {
        break;
      }
      this.#nowMs = nextMs;
      this.#send(this.#coordinator.tick(nextMs));
    }
    this.#nowMs = endMs;
    for (const process of this.#parts.processes.filter((one) => one.acts)) {
      this.giveUp(process);
    }
  }

  /** Ends a member that has had no coordinator for too long. */
  giveUp({ core, connection, aloneMs }: ScheduledProcess): void {
    if (connection === undefined && this.#nowMs - aloneMs > COORDINATOR_MS) {
      core.fail({ kind: 'alone', reason: 'the coordinator is gone' });
    }
  }

  #send(words: readonly Word<null>[]): void {
    const { rules, processes } = this.#parts;
    rules.changed({ ...this.#coordinator.status, ...this.#coordinator.takeChanges() });
    for (const { to, told } of words) {
      processes.find(({ connection }) => connection === to)?.toMember.push(told);
    }
  }
}
