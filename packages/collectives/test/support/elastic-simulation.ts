// A whole elastic job on virtual time: its coordinator, its members, their handshakes, links, signs
// of life and calls, over simulated sockets. Members are killed, stopped, cut off, come and leave,
// and the coordinator is started again, at any moment; everything is drawn from one seed.

import { JoinError, type ReduceHook } from '@shardweave/collectives';
import {
  type ElasticServer,
  MembershipError,
  type ServeElasticOptions,
} from '@shardweave/collectives/elastic';
import { createSimulationResources, SeededRandom } from '@shardweave/collectives/testing';
import { VirtualTime } from '../../src/testing/simulator/virtual-time.js';
import { serveElasticOn } from '../../src/transports/ws/elastic/serve-elastic.js';
import { EpochRules } from './epoch-rules.js';
import { type SimulatedJob, SimulatedMember } from './simulated-member.js';
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
  /nobody is left who has its state|those who had its state have left|have come again|nobody has come who was in it|it has ended|members, of at least/;

/** What happens, as often as it stands here. */
const KINDS = [
  ...(['kill', 'kill', 'kill', 'kill', 'stop', 'stop', 'cut', 'cut'] as const),
  ...(['come', 'come', 'come', 'come', 'leave', 'restart'] as const),
];

export interface SimulationFigures {
  numEpochs: number;
  numSteps: number;
  numEnded: number;
  readonly kinds: Map<string, number>;
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
  readonly #figures: SimulationFigures;
  readonly #size: { readonly min: number; readonly max: number };
  readonly #job: SimulatedJob;
  readonly #shareListening: number;
  readonly #members: SimulatedMember[] = [];
  #coordinator: CoordinatorProcess;
  /** Whether the job may end though somebody lives who has its state. */
  #mayEnd = false;
  /** The members that had the state of the job when it ended. */
  #numHolders = 0;
  #problem: Error | undefined;
  #isOver = false;
  readonly trace: string[] = [];

  constructor(seed: number, reduce: ReduceHook, figures: SimulationFigures) {
    this.#random = new SeededRandom(seed);
    this.#figures = figures;
    this.#net = new SimulatedNet(this.#time, this.#random.fork(), SECRET);
    this.#size = { min: this.#random.pick([1, 1, 2]), max: this.#random.pick([4, 5, 6]) };
    this.#rules = new EpochRules(this.#size, (id) =>
      this.#living.some((member) => member.id === id),
    );
    this.#shareListening = this.#random.pick([1, 1, 0.5]);
    this.#job = {
      rendezvous: { host: COORDINATOR, port: PORT },
      max: this.#size.max,
      secret: SECRET,
      heartbeat: this.#random.pick(['worker', 'link'] as const),
      reduce,
      rules: this.#rules,
      say: (text) => this.#say(text),
    };
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
    this.#figures.numEpochs += this.#rules.numEpochs;
    this.#figures.numSteps += this.#rules.numSteps;
    if (this.#problem !== undefined) {
      throw this.#problem;
    }
    this.#rules.states.check();
  }

  get #living(): readonly SimulatedMember[] {
    return this.#members.filter(({ isLiving }) => isLiving);
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
    if (!this.#isOver) {
      const sockets = this.#net.start(`10.0.0.${this.#members.length + 1}`);
      const listens = this.#random.chance(this.#shareListening);
      const member = new SimulatedMember(sockets, this.#job, { listens });
      this.#members.push(member);
      member.run().catch((error: Error) => this.#onError(member, error));
    }
  }

  #onError(member: SimulatedMember, error: Error): void {
    this.#say(`${member.name}: ${error.message}`);
    if (error instanceof MembershipError) {
      if (error.kind === 'fenced') {
        this.#come(); // as a newcomer
      } else if (error.kind === 'ended') {
        this.#onEnded(member, error);
      }
    } else if (!(error instanceof JoinError)) {
      this.#fail(error);
    }
  }

  #onEnded(member: SimulatedMember, error: MembershipError): void {
    if (!ENDINGS.test(error.reason)) {
      this.#fail(error);
    } else if (this.#rules.isHolder(member.id!) && !member.isLeaving) {
      this.#numHolders++;
    }
  }

  #happen(): void {
    const kind = this.#random.pick(KINDS);
    this.#figures.kinds.set(kind, (this.#figures.kinds.get(kind) ?? 0) + 1);
    const living = this.#living;
    const member = living.length === 0 ? undefined : this.#random.pick(living);
    if (kind === 'come') {
      this.#come();
    } else if (kind === 'restart') {
      this.#restart();
    } else if (member !== undefined) {
      this.#say(`${member.name}: ${kind}`);
      if (kind === 'kill') {
        member.sockets.kill();
      } else if (kind === 'stop') {
        member.stop();
        this.#time.after(this.#random.pick([100, 1500, 4000, 12_000]), () => member.wake());
      } else if (kind === 'cut') {
        this.#cut(member);
      } else {
        member.leave();
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

  /** Cuts the path to the coordinator, to another member, or between two halves. */
  #cut({ sockets: { host } }: SimulatedMember): void {
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
    this.#net.calm();
    for (const member of this.#members) {
      member.wake();
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
    for (const { sockets } of [...this.#members, this.#coordinator]) {
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
    if (!this.#mayEnd && this.#numHolders >= this.#size.min) {
      this.#fail(new Error(`it ended though ${this.#numHolders} had its state`));
    }
  }

  #fail(error: Error): void {
    this.#problem ??= error;
  }

  #say(text: string): void {
    this.trace.push(`${this.#time.nowMs.toFixed(1)} ${text}`);
  }
}

/** Runs jobs of these seeds, and prints what happened. Throws where something must not. */
export async function simulateElastic(
  firstSeed: number,
  count: number,
): Promise<SimulationFigures> {
  // A reducer is made in real time, in which the virtual one would pass.
  const { reducer } = await createSimulationResources();
  const reduce: ReduceHook = (parts, output, options) => reducer.reduce(parts, output, options);
  const kinds = new Map<string, number>();
  const figures: SimulationFigures = {
    numEpochs: 0,
    numSteps: 0,
    numEnded: 0,
    kinds,
  };
  for (let seed = firstSeed; seed < firstSeed + count; seed++) {
    const simulation = new ElasticSimulation(seed, reduce, figures);
    try {
      await simulation.run();
    } catch (error) {
      const events = simulation.trace.slice(-60).join('\n');
      throw new Error(`seed ${seed}: ${(error as Error).message}, after\n${events}`);
    }
  }
  const counts = [...kinds].map(([kind, number]) => `${number} ${kind}`).join(', ');
  const { numEpochs, numSteps, numEnded } = figures;
  process.stdout.write(
    `${count} jobs: ${numEpochs} epochs, ${numSteps} steps, ${numEnded} ended; ${counts}\n`,
  );
  return figures;
}
