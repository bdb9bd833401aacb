// A whole elastic job on virtual time: its coordinator, its members, their handshakes, links, signs
// of life and calls, over simulated sockets. Members are killed, stopped, cut off, come and leave,
// and the coordinator is started again, at any moment; everything is drawn from one seed.

import type { ReduceHook } from '@shardweave/collectives';
import { JoinError } from '@shardweave/collectives';
import {
  type ElasticServer,
  type JoinElasticOptions,
  MembershipError,
  type ServeElasticOptions,
} from '@shardweave/collectives/elastic';
import { SeededRandom } from '@shardweave/collectives/testing';
import { VirtualTime } from '../../src/testing/simulator/virtual-time.js';
import { joinElasticOn } from '../../src/transports/ws/elastic/join-elastic.js';
import { serveElasticOn } from '../../src/transports/ws/elastic/serve-elastic.js';
import { CountingMember } from './counting-member.js';
import { EpochRules } from './epoch-rules.js';
import { SimulatedHeartbeats } from './simulated-heartbeats.js';
import { SimulatedNet, type SimulatedSockets } from './simulated-sockets.js';

const SECRET = 'made by the launcher';
const MAX_EVENTS = 400_000;

/** The virtual milliseconds in which things happen, and the most until the job is at rest. */
const BUSY_MS = 8000;
const CALM_MS = 90_000;

const COORDINATOR = 'coordinator';
const PORT = 7;

/** The ends of a job that something must have caused. */
const ENDINGS =
  /nobody is left who has its state|have come again|nobody has come who was in it|it has ended|members, of at least/;

const KINDS = ['kill', 'kill', 'stop', 'cut', 'come', 'come', 'leave', 'restart'] as const;

export interface SimulationFigures {
  numEpochs: number;
  numSteps: number;
  numEnded: number;
  numEvents: number;
  readonly kinds: Map<string, number>;
}

/** A member's process. */
interface Worker {
  readonly sockets: SimulatedSockets;
  id: number | undefined;
  counting: CountingMember | undefined;
  /** Whether it is out of the job. */
  hasEnded: boolean;
  isStopped: boolean;
  /** The epoch in which it has done a step last. */
  workedIn: number;
}

interface CoordinatorProcess {
  readonly sockets: SimulatedSockets;
  /** Absent until it listens. */
  server?: ElasticServer;
}

export class ElasticSimulation {
  readonly #random: SeededRandom;
  readonly #time = new VirtualTime();
  readonly #net: SimulatedNet;
  readonly #rules: EpochRules;
  readonly #reduce: ReduceHook;
  readonly #figures: SimulationFigures;
  readonly #size: { readonly min: number; readonly max: number };
  readonly #heartbeat: 'worker' | 'link';
  readonly #workers: Worker[] = [];
  #coordinator: CoordinatorProcess;
  /** Whether the job may end though somebody lives who has its state. */
  #mayEnd = false;
  #problem: Error | undefined;
  #isOver = false;
  readonly trace: string[] = [];

  constructor(seed: number, reduce: ReduceHook, figures: SimulationFigures) {
    this.#random = new SeededRandom(seed);
    this.#reduce = reduce;
    this.#figures = figures;
    this.#net = new SimulatedNet(this.#time, this.#random.fork(), SECRET);
    this.#size = { min: this.#random.pick([1, 1, 2]), max: this.#random.pick([4, 5, 6]) };
    this.#heartbeat = this.#random.pick(['worker', 'link'] as const);
    this.#rules = new EpochRules(this.#size, {
      isLiving: (id) => this.#living.some((worker) => worker.id === id),
    });
    this.#coordinator = this.#serve('new');
  }

  /** Throws where something happens that must not, or the job does not come to rest. */
  async run(): Promise<void> {
    for (let i = 0; i < this.#size.max - this.#random.below(2); i++) {
      this.#come();
    }
    let atMs = this.#random.between(0, 1500);
    for (let i = 0; i < 8 && atMs < BUSY_MS; i++) {
      this.#time.after(atMs, () => this.#happen());
      // The next thing may hit what the last one has set going.
      atMs += this.#random.chance(0.5)
        ? this.#random.exponential(100)
        : this.#random.between(0, 3000);
    }
    void this.#settle();
    await this.#time.run(MAX_EVENTS);
    this.#figures.numEvents += this.#time.numEvents;
    this.#figures.numEpochs += this.#rules.numEpochs;
    this.#figures.numSteps += this.#rules.states.numSteps;
    if (this.#problem !== undefined) {
      throw this.#problem;
    }
    this.#rules.states.check();
  }

  get #living(): readonly Worker[] {
    return this.#workers.filter(({ sockets, hasEnded }) => !sockets.process.isDead && !hasEnded);
  }

  #serve(begin: 'new' | 'again'): CoordinatorProcess {
    const sockets = this.#net.start(COORDINATOR);
    const coordinator: CoordinatorProcess = { sockets };
    const options: ServeElasticOptions = {
      ...this.#size,
      begin,
      secret: SECRET,
      port: PORT,
      settleMs: 200,
      suspectMs: 600,
      linkMs: 2000,
      shortMs: 4000,
      onChange: (change) => {
        this.#say(`${change.phase} ${change.epoch} of ${change.members.join()}`);
        for (const { id, how, reason } of change.gone) {
          this.#say(`${id} ${how}: ${reason}`);
        }
        try {
          this.#rules.changed(change);
        } catch (error) {
          this.#fail(error as Error);
        }
      },
    };
    serveElasticOn(options, { sockets, clock: sockets.process }).then(
      (server) => {
        coordinator.server = server;
      },
      (error: Error) => this.#fail(error),
    );
    return coordinator;
  }

  #come(): void {
    if (this.#isOver) {
      return;
    }
    const sockets = this.#net.start(`10.0.0.${this.#workers.length + 1}`);
    const worker: Worker = {
      sockets,
      id: undefined,
      counting: undefined,
      hasEnded: false,
      isStopped: false,
      workedIn: 0,
    };
    this.#workers.push(worker);
    void this.#work(worker);
  }

  async #work(worker: Worker): Promise<void> {
    const { sockets } = worker;
    const options: JoinElasticOptions = {
      rendezvous: { host: COORDINATOR, port: PORT },
      max: this.#size.max,
      secret: SECRET,
      reduce: this.#reduce,
      encryption: 'none',
      joinTimeoutMs: 5000,
      heartbeatMs: 500,
      silenceMs: 2100,
      linkSilenceMs: 2100,
    };
    try {
      const member = await joinElasticOn(options, {
        sockets,
        clock: sockets.process,
        startHeartbeats: (heartbeatMs) =>
          this.#heartbeat === 'link' ? undefined : new SimulatedHeartbeats(sockets, heartbeatMs),
      });
      worker.id = member.id;
      this.#say(`${sockets.host} is member ${member.id}`);
      const counting = new CountingMember(member, {
        begun: (epoch) => {
          worker.id = member.id;
          this.#say(`${member.id} begins epoch ${epoch.number} at ${epoch.step}`);
          this.#rules.begun(member.id, epoch);
        },
        called: (epoch, step) => this.#rules.called(member.id, epoch, step),
        done: (epoch, step, state) => {
          worker.workedIn = epoch.number;
          this.#rules.done(epoch, step, state);
        },
        pause: () => sockets.process.sleep(200),
      });
      worker.counting = counting;
      await counting.run();
      await member.leave();
      this.#say(`${member.id} has left`);
      worker.hasEnded = true;
    } catch (error) {
      worker.hasEnded = true;
      this.#onError(worker, error as Error);
    }
  }

  #onError({ id, sockets }: Worker, error: Error): void {
    this.#say(`${id ?? sockets.host}: ${error.message}`);
    const isKnown =
      error instanceof MembershipError || (error instanceof JoinError && id === undefined);
    if (!isKnown) {
      this.#fail(error);
      return;
    }
    if (error instanceof MembershipError && error.kind === 'fenced') {
      this.#come(); // as a newcomer
    } else if (error instanceof MembershipError && error.kind === 'ended') {
      if (!ENDINGS.test(error.reason)) {
        this.#fail(error);
      }
    }
  }

  #happen(): void {
    const kind = this.#random.pick(KINDS);
    this.#figures.kinds.set(kind, (this.#figures.kinds.get(kind) ?? 0) + 1);
    const living = this.#living;
    const worker = living.length === 0 ? undefined : this.#random.pick(living);
    if (kind === 'come' && this.#workers.length < 12) {
      this.#come();
    } else if (kind === 'restart') {
      if (this.#random.chance(0.5)) {
        this.#restart();
      }
    } else if (worker !== undefined) {
      this.#say(`${worker.sockets.host}, ${worker.id}: ${kind}`);
      if (kind === 'kill') {
        worker.sockets.kill();
      } else if (kind === 'stop') {
        this.#stop(worker);
      } else if (kind === 'cut') {
        this.#cut(worker);
      } else if (worker.counting !== undefined) {
        worker.counting.isOver = true;
      }
    }
  }

  #restart(): void {
    this.#say('the coordinator is killed');
    this.#mayEnd = true;
    this.#coordinator.sockets.kill();
    const old = this.#coordinator;
    this.#time.after(this.#random.pick([0, 50, 500, 3000, 8000]), () => {
      if (this.#coordinator === old && !this.#isOver) {
        this.#say('the coordinator is started again');
        this.#rules.restarted();
        this.#coordinator = this.#serve('again');
      }
    });
  }

  #stop(worker: Worker): void {
    this.#mayEnd = true;
    if (!worker.isStopped) {
      worker.isStopped = true;
      worker.sockets.process.pause();
      this.#time.after(this.#random.pick([100, 1500, 4000, 12_000]), () => this.#wake(worker));
    }
  }

  #wake(worker: Worker): void {
    if (worker.isStopped) {
      this.#say(`${worker.sockets.host}, ${worker.id} goes on`);
      worker.isStopped = false;
      worker.sockets.process.resume();
    }
  }

  /** Cuts the path to the coordinator, to another member, or between two halves. */
  #cut({ sockets: { host } }: Worker): void {
    this.#mayEnd = true;
    const others = this.#living.map(({ sockets }) => sockets.host).filter((one) => one !== host);
    if (this.#random.chance(0.2)) {
      this.#net.cut(host, COORDINATOR);
    } else if (this.#random.chance(0.5) && others.length > 0) {
      this.#net.cut(host, this.#random.pick(others));
    } else {
      const half = new Set([host, ...others.filter(() => this.#random.chance(0.4))]);
      for (const a of half) {
        for (const b of others.filter((one) => !half.has(one))) {
          this.#net.cut(a, b);
        }
      }
    }
    this.#time.after(this.#random.pick([300, 2500, 5000]), () => this.#net.heal());
  }

  /** Lets everything heal, and waits until all who live work together, or the job has ended. */
  async #settle(): Promise<void> {
    await this.#time.sleep(BUSY_MS);
    this.#say('everything heals');
    this.#net.heal();
    for (const worker of this.#workers) {
      this.#wake(worker);
    }
    while (!this.#hasSettled() && this.#problem === undefined) {
      if (this.#time.nowMs > BUSY_MS + CALM_MS) {
        const { phase, epoch, members } = this.#coordinator.server!.status;
        const living = this.#living.map(({ id, workedIn }) => `${id} in ${workedIn}`).join();
        this.#fail(new Error(`it is ${phase} ${epoch} with ${members.join()}; ${living} live`));
      }
      await this.#time.sleep(500);
    }
    this.#checkEnd();
    this.#isOver = true;
    for (const { sockets } of [...this.#workers, this.#coordinator]) {
      sockets.kill();
    }
  }

  #hasSettled(): boolean {
    const living = this.#living;
    if (living.length === 0) {
      return true;
    }
    const { status } = this.#coordinator.server ?? {};
    const working = living.filter(({ workedIn }) => workedIn === status?.epoch);
    const { length } = status?.members ?? [];
    const isWhole = length === Math.min(this.#size.max, living.length);
    return status?.phase === 'running' && isWhole && working.length === length;
  }

  #checkEnd(): void {
    const { phase } = this.#coordinator.server?.status ?? {};
    if (phase !== 'ended') {
      return;
    }
    this.#figures.numEnded++;
    const holders = this.#workers.filter(
      ({ id, sockets, counting }) =>
        id !== undefined &&
        this.#rules.isHolder(id) &&
        !sockets.process.isDead &&
        !counting?.isOver,
    );
    if (!this.#mayEnd && holders.length >= this.#size.min) {
      this.#fail(new Error(`it ended though ${holders.map(({ id }) => id).join()} live`));
    }
  }

  #fail(error: Error): void {
    this.#problem ??= error;
  }

  #say(text: string): void {
    this.trace.push(`${this.#time.nowMs.toFixed(1)} ${text}`);
  }
}
