// A member's process in a simulated elastic job: it joins, does steps until it is told to end, and
// tells the rules what it does.

import type { ReduceHook } from '@shardweave/collectives';
import { joinElasticOver } from '../../src/transports/ws/elastic/join-elastic-over.js';
import { CountingMember } from './counting-member.js';
import type { EpochRules } from './epoch-rules.js';
import { SimulatedHeartbeats } from './simulated-heartbeats.js';
import type { SimulatedSockets } from './simulated-sockets.js';

export interface SimulatedJob {
  readonly rendezvous: { readonly host: string; readonly port: number };
  readonly max: number;
  readonly secret: string;
  readonly heartbeat: 'worker' | 'link';
  readonly reduce: ReduceHook;
  readonly rules: EpochRules;
  /** The virtual milliseconds between two steps. Default: 200. */
  readonly pauseMs?: number;
  /** The time for each answer of a process that is dialed. Default: that of joinElastic. */
  readonly proofMs?: number;
  say(text: string): void;
}

export class SimulatedMember {
  readonly sockets: SimulatedSockets;
  readonly #job: SimulatedJob;
  readonly #listens: boolean;
  #counting: CountingMember | undefined;
  #isStopped = false;
  #hasEnded = false;
  #workedIn = 0;

  /** @param options whether it listens; one that does not is joined to others of its kind */
  constructor(
    sockets: SimulatedSockets,
    job: SimulatedJob,
    { listens }: { readonly listens: boolean },
  ) {
    this.sockets = sockets;
    this.#listens = listens;
    this.#job = job;
  }

  /** Its id, once it has one. */
  get id(): number | undefined {
    return this.#counting?.member.id;
  }

  get name(): string {
    return `${this.sockets.host}, ${this.id ?? 'a newcomer'}`;
  }

  /** Whether it is in the job, or on its way into it. */
  get isLiving(): boolean {
    return !this.sockets.process.isDead && !this.#hasEnded;
  }

  /** Whether it goes, or has gone, by its own will. */
  get isLeaving(): boolean {
    return this.#counting?.isOver === true;
  }

  /** The epoch in which it has done a step last. */
  get workedIn(): number {
    return this.#workedIn;
  }

  /** Resolves when it has left. Rejects where it is out of the job for another reason. */
  async run(): Promise<void> {
    const {
      rules,
      reduce,
      say,
      rendezvous,
      max,
      secret,
      heartbeat,
      pauseMs = 200,
      proofMs,
    } = this.#job;
    const { sockets } = this;
    try {
      const options = {
        ...{ rendezvous, max, secret, reduce },
        joinTimeoutMs: 5000,
        heartbeatMs: 500,
        silenceMs: 2100,
        linkSilenceMs: 2100,
      } as const;
      const member = await joinElasticOver(options, {
        sockets,
        clock: sockets.process,
        schemeTo: () => 'ws',
        listen: this.#listens && {},
        proofMs,
        startHeartbeats: async (heartbeatMs) =>
          heartbeat === 'link' ? undefined : new SimulatedHeartbeats(sockets, heartbeatMs),
      });
      this.#counting = new CountingMember(member, {
        begun: (epoch) => {
          say(`${member.id} begins epoch ${epoch.number} at ${epoch.step}`);
          rules.begun(member.id, epoch);
        },
        called: (epoch, step) => rules.called(member.id, epoch, step),
        done: (epoch, step, state) => {
          this.#workedIn = epoch.number;
          rules.done(epoch, step, state);
        },
        pause: () => sockets.process.sleep(pauseMs),
      });
      say(`${this.name} has come`);
      await this.#counting.run();
      await member.leave();
    } finally {
      this.#hasEnded = true;
    }
  }

  leave(): void {
    if (this.#counting !== undefined) {
      this.#counting.isOver = true;
    }
  }

  stop(): void {
    if (!this.#isStopped) {
      this.#isStopped = true;
      this.sockets.process.pause();
    }
  }

  /** Goes on, where it is stopped. */
  wake(): void {
    if (this.#isStopped) {
      this.#job.say(`${this.name} goes on`);
      this.#isStopped = false;
      this.sockets.process.resume();
    }
  }
}
