// An elastic job over simulated sockets on virtual time, whose members and coordinator do what a
// test says. elastic-simulation.ts has things happen at random.

import type { ReduceHook } from '@shardweave/collectives';
import {
  type CoordinatorChange,
  MembershipError,
  type ServeElasticOptions,
} from '@shardweave/collectives/elastic';
import { createSimulationResources, SeededRandom } from '@shardweave/collectives/testing';
import { VirtualTime } from '../../src/testing/simulator/virtual-time.js';
import { serveElasticOn } from '../../src/transports/ws/elastic/serve-elastic.js';
import { EpochRules } from './epoch-rules.js';
import { SimulatedMember } from './simulated-member.js';
import { SimulatedNet, type SimulatedSockets } from './simulated-sockets.js';

const SECRET = 'made by the launcher';
export const COORDINATOR = 'coordinator';
const PORT = 7;
const PAUSE_MS = 500;
const MAX_EVENTS = 1_000_000;

/** How a member has ended, and when. */
export interface StagedEnd {
  readonly atMs: number;
  readonly text: string;
}

export class ElasticStage {
  readonly time = new VirtualTime();
  readonly net = new SimulatedNet(this.time, new SeededRandom(41), SECRET);
  readonly rules: EpochRules;
  readonly ends = new Map<SimulatedMember, StagedEnd>();
  readonly #members: SimulatedMember[] = [];
  readonly #reduce: ReduceHook;
  readonly #size: { readonly min: number; readonly max: number };
  readonly #coordinators: SimulatedSockets[] = [];
  #change: CoordinatorChange | undefined;
  #problem: Error | undefined;

  constructor(reduce: ReduceHook, size: { readonly min: number; readonly max: number }) {
    this.net.calm();
    this.#reduce = reduce;
    this.#size = size;
    const isLiving = (id: number) => this.#members.some((one) => one.isLiving && one.id === id);
    this.rules = new EpochRules(size, isLiving);
  }

  /**
   * Starts a job of so many, and does what the script says once they are at work. It takes them in
   * the order of their ids.
   */
  static async play(
    { min = 1, count }: { readonly min?: number; readonly count: number },
    script: (stage: ElasticStage, members: readonly SimulatedMember[]) => Promise<void>,
  ): Promise<void> {
    const { reducer } = await createSimulationResources();
    const reduce: ReduceHook = (parts, output, options) => reducer.reduce(parts, output, options);
    const stage = new ElasticStage(reduce, { min, max: count });
    stage.serve();
    const members = Array.from({ length: count }, () => stage.come());
    const played = stage
      .works(...members)
      .then(() => script(stage, stage.#byId(members)))
      .catch((error: Error) => stage.#fail(error))
      .finally(() => stage.#end());
    await stage.time.run(MAX_EVENTS);
    await played;
    if (stage.#problem !== undefined) {
      throw stage.#problem;
    }
    stage.rules.states.check();
  }

  /** The last word of the coordinator, whoever was that. */
  get change(): CoordinatorChange {
    return this.#change!;
  }

  get coordinator(): SimulatedSockets {
    return this.#coordinators.at(-1)!;
  }

  /** Starts a coordinator at the address of the one before, which may live. */
  serve(options: Partial<ServeElasticOptions> = {}): void {
    const sockets = this.net.start(COORDINATOR);
    this.#coordinators.push(sockets);
    if (options.begin === 'again') {
      this.rules.restarted();
    }
    const all: ServeElasticOptions = {
      ...this.#size,
      ...{ secret: SECRET, port: PORT, settleMs: 200 },
      ...options,
      onChange: (change) => {
        if (this.coordinator === sockets) {
          this.#change = change;
          this.#try(() => this.rules.changed(change));
        }
      },
    };
    serveElasticOn(all, { sockets, clock: sockets.process }).catch((error) => this.#fail(error));
  }

  /** Starts a process that joins the job. */
  come(): SimulatedMember {
    const sockets = this.net.start(`10.0.0.${this.#members.length + 1}`);
    const job = {
      rendezvous: { host: COORDINATOR, port: PORT },
      max: this.#size.max,
      secret: SECRET,
      heartbeat: 'worker',
      pauseMs: PAUSE_MS,
      proofMs: 1000,
      reduce: this.#reduce,
      rules: this.rules,
      say: () => {},
    } as const;
    const member = new SimulatedMember(sockets, job, { listens: true });
    this.#members.push(member);
    member.run().then(
      () => this.#ended(member, 'it has left'),
      (error: Error) => {
        this.#ended(member, error.message);
        if (!(error instanceof MembershipError)) {
          this.#fail(error);
        }
      },
    );
    return member;
  }

  /** Cuts all paths between those of two sides. */
  cut(a: readonly (SimulatedMember | string)[], b: readonly (SimulatedMember | string)[]): void {
    const hostOf = (one: SimulatedMember | string) =>
      typeof one === 'string' ? one : one.sockets.host;
    for (const one of a) {
      for (const other of b) {
        this.net.cut(hostOf(one), hostOf(other));
      }
    }
  }

  /** Resolves when these, and nobody else, have done a step of the newest epoch. */
  async works(...members: readonly SimulatedMember[]): Promise<void> {
    const limitMs = this.time.nowMs + 60_000;
    const isThere = () =>
      this.#change?.phase === 'running' &&
      this.change.members.length === members.length &&
      members.every(({ workedIn }) => workedIn === this.change.epoch);
    while (!isThere()) {
      if (this.time.nowMs > limitMs) {
        const ends = [...this.ends.values()].map(({ text }) => text).join('\n');
        throw new Error(`${JSON.stringify(this.#change)}\n${ends}`);
      }
      await this.time.sleep(20);
    }
  }

  #byId(members: readonly SimulatedMember[]): readonly SimulatedMember[] {
    return members.toSorted((a, b) => a.id! - b.id!);
  }

  #ended(member: SimulatedMember, text: string): void {
    this.ends.set(member, { atMs: this.time.nowMs, text });
  }

  #try(body: () => void): void {
    try {
      body();
    } catch (error) {
      this.#fail(error as Error);
    }
  }

  #fail(error: Error): void {
    this.#problem ??= error;
  }

  #end(): void {
    const all = [...this.#members.map(({ sockets }) => sockets), ...this.#coordinators];
    for (const sockets of all) {
      sockets.kill();
    }
  }
}
