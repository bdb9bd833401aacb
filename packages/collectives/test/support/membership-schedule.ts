// Random schedules of an elastic job: the coordinator and the members' own machines, with messages
// that wait on their connections, members that are killed, stopped or cut off, and a coordinator
// that is started again. Time is a number. After each event it holds what happened against what
// must never happen.

import { SeededRandom } from '@shardweave/collectives/testing';
import type { CoordinatorOptions } from '../../src/membership/coordinator-options.js';
import type { Table } from '../../src/membership/messages.js';
import { EpochRules, expectThat, type KnownEpoch } from './epoch-rules.js';
import { SchedulePost } from './schedule-post.js';
import { ScheduledProcess } from './scheduled-process.js';

export interface ScheduleFigures {
  numEpochs: number;
  numSteps: number;
  numEnded: number;
  readonly kinds: Map<string, number>;
}

export class MembershipSchedule {
  readonly #random: SeededRandom;
  readonly #options: CoordinatorOptions;
  readonly #figures: ScheduleFigures;
  readonly #processes: ScheduledProcess[] = [];
  /** The pairs of ids that have no path, such as '1 3'. */
  readonly #cut = new Set<string>();
  readonly #post: SchedulePost;
  readonly #rules: EpochRules;
  /** Whose part of the step's collective all get that are in the epoch, by epoch and step. */
  readonly #called = new Map<string, Set<number>>();
  readonly #wasDecided = new Set<string>();

  constructor(seed: number, figures: ScheduleFigures) {
    this.#random = new SeededRandom(seed);
    this.#figures = figures;
    const max = this.#random.pick([1, 2, 3, 4, 6]);
    const min = 1 + this.#random.below(Math.min(max, 3));
    this.#options = { min, max, graceMs: 60_000 };
    this.#rules = new EpochRules({ min, max }, (id) =>
      this.#processes.some(({ core, isAlive }) => core.id === id && isAlive && !core.ending),
    );
    this.#post = new SchedulePost({
      options: this.#options,
      random: this.#random,
      rules: this.#rules,
      processes: this.#processes,
      welcomed: (process) => this.#stopAtEdge(process),
    });
    for (let i = 0; i < this.#options.min + this.#random.below(3); i++) {
      this.#come();
    }
  }

  /** The messages and events so far. */
  get trace(): readonly string[] {
    return this.#post.trace;
  }

  /** Throws where something happens that must not. */
  run(): void {
    for (let i = 0; i < 60; i++) {
      if (i < 6 || i % 6 === 0) {
        this.#live(this.#random.pick([10, 300, 1100]));
      }
      this.#next();
      this.#check();
    }
    this.#settle();
  }

  /** Lets everybody do for a while what it has to do. */
  #live(ms: number): void {
    for (let i = 0; i < 4; i++) {
      this.#post.deliver(this.#processes.length * 4);
      for (const process of this.#processes.filter((one) => one.acts)) {
        this.#link(process);
        this.#step(process);
      }
    }
    this.#post.pass(ms);
  }

  #next(): void {
    const random = this.#random;
    const kind = random.pick(KINDS);
    const acting = this.#processes.filter((process) => process.acts);
    const one = acting.length === 0 ? undefined : random.pick(acting);
    if (random.chance(RARE[kind] ?? 1)) {
      this.#figures.kinds.set(kind, (this.#figures.kinds.get(kind) ?? 0) + 1);
      this.#do(kind, one);
    }
  }

  #do(kind: (typeof KINDS)[number], one: ScheduledProcess | undefined): void {
    const random = this.#random;
    switch (kind) {
      case 'deliver':
        this.#post.deliver(1 + random.below(12));
        return;
      case 'tick':
        this.#post.pass(random.pick([10, 500, 1500, 6000]));
        return;
      case 'come':
        if (this.#processes.length < 12) {
          this.#come();
        }
        return;
      case 'restart':
        this.#post.restart();
        return;
      case 'heal':
        this.#cut.clear();
        return;
      case 'wake':
        for (const process of this.#processes) {
          process.isStopped = false;
        }
        return;
      default:
        if (one !== undefined) {
          this.#doTo(kind, one);
        }
    }
  }

  #doTo(
    kind: 'step' | 'link' | 'edge' | 'kill' | 'stop' | 'hang up' | 'cut' | 'leave',
    one: ScheduledProcess,
  ): void {
    const other = this.#random.pick(this.#processes);
    if (kind === 'step') {
      this.#step(one);
    } else if (kind === 'link') {
      this.#link(one);
    } else if (kind === 'edge') {
      this.#stopAtEdge(one);
    } else if (kind === 'kill') {
      this.#post.say(`${one.core.id} is killed`);
      one.isAlive = false;
      this.#post.hangUp(one);
      this.#miss(one);
    } else if (kind === 'stop') {
      this.#post.say(`${one.core.id} is stopped`);
      one.isStopped = true;
      this.#miss(one);
    } else if (kind === 'hang up') {
      this.#post.hangUp(one);
    } else if (kind === 'leave') {
      this.#post.say(`${one.core.id} leaves`);
      one.core.leave();
    } else if (one !== other && other.core.id !== undefined && one.core.id !== undefined) {
      this.#post.say(`${one.core.id} and ${other.core.id} are cut`);
      this.#cut.add(pairOf(one.core.id, other.core.id));
      this.#missEachOther(one, other);
    }
  }

  #come(): void {
    const process = new ScheduledProcess((own) => ({
      say: (said) => {
        if (own.connection !== undefined) {
          own.toCoordinator.push(said);
        }
      },
      link: (table) => this.#onTable(own, table),
      start: (table) => this.#onFormed(own, table),
      stop: () => {
        own.peers.clear();
        own.called?.delete(own.core.id!); // nobody gets its part any more
      },
      fail: () => {},
    }));
    this.#processes.push(process);
    this.#post.connect(process);
  }

  /** A member calls the collective of its step, and does the step where all have called. */
  #step(one: ScheduledProcess): void {
    this.#post.giveUp(one);
    const { running, id } = one.core;
    if (running === undefined) {
      return;
    }
    const { epoch, members } = running;
    if (one.copiesFrom !== undefined) {
      const { id: from, step } = one.copiesFrom;
      const source = this.#processes.find(({ core }) => core.id === from)!;
      if (source.acts && source.core.running?.epoch === epoch && this.#random.chance(0.5)) {
        one.step = step;
        one.copiesFrom = undefined;
        this.#rules.copied(id!);
      }
      return;
    }
    if (one.core.isDue && this.#random.chance(0.5)) {
      this.#stopAtEdge(one);
      return;
    }
    const key = `${epoch} ${one.step}`;
    const called = this.#called.get(key) ?? new Set();
    this.#called.set(key, called.add(id!));
    one.called = called;
    this.#rules.called(id!, knownOf(running), one.step);
    if (called.size === members.length) {
      this.#wasDecided.add(key);
    }
    if (this.#wasDecided.has(key)) {
      one.step++; // a member may get there later, and alone
    }
  }

  #stopAtEdge(one: ScheduledProcess): void {
    one.isWaiting = true;
    one.core.reform({ step: one.step, note: '' });
  }

  /** Makes a link of a member that forms an epoch to another one of it. */
  #link(one: ScheduledProcess): void {
    const table = this.#forming.get(one);
    for (const other of this.#processes) {
      const isSame = table !== undefined && this.#forming.get(other)?.epoch === table.epoch;
      const isCut = this.#cut.has(pairOf(one.core.id!, other.core.id!));
      if (other !== one && isSame && other.acts && !isCut) {
        one.peers.add(other.core.id!);
        other.peers.add(one.core.id!);
        this.#tellLinks(other, table);
      }
    }
    if (table !== undefined) {
      this.#tellLinks(one, table);
    }
  }

  /** Tells a member's machine of its links where there are more than it knows of. */
  #tellLinks(one: ScheduledProcess, { epoch }: Table<null>): void {
    const known = `${epoch} ${one.peers.size}`;
    if (this.#known.get(one) !== known) {
      this.#known.set(one, known);
      one.core.link(epoch, [...one.peers]);
    }
  }

  /** The epoch and the number of links that members' machines know of. */
  readonly #known = new Map<ScheduledProcess, string>();
  readonly #forming = new Map<ScheduledProcess, Table<null>>();

  #onTable(own: ScheduledProcess, table: Table<null>): void {
    own.peers.clear();
    this.#forming.set(own, table);
  }

  #onFormed(own: ScheduledProcess, table: Table<null>): void {
    const { epoch, members, source } = table;
    this.#forming.delete(own);
    own.isWaiting = false;
    own.copiesFrom = own.step < members[source]!.step ? members[source]! : undefined;
    const others = members.filter(({ id }) => id !== own.core.id);
    expectThat(others.length === members.length - 1, `${own.core.id} is not of epoch ${epoch}`);
    const isLinked = others.every(({ id }) => own.peers.has(id));
    expectThat(isLinked, `epoch ${epoch} begins before ${own.core.id} has its links`);
    this.#rules.begun(own.core.id!, knownOf(table));
  }

  /** Who runs an epoch with a process that is silent notices, or does not yet. */
  #miss(lost: ScheduledProcess): void {
    for (const process of this.#processes) {
      if (process !== lost && this.#random.chance(0.7)) {
        this.#missEachOther(process, lost);
      }
    }
  }

  #missEachOther(...pair: readonly [ScheduledProcess, ScheduledProcess]): void {
    for (const [one, other] of [pair, [pair[1], pair[0]] as const]) {
      const { running } = one.core;
      const { id } = other.core;
      if (one.acts && running?.members.some((member) => member.id === id) === true) {
        one.core.lose(running.epoch, [id!], 'silent');
      }
    }
  }

  #check(): void {
    const running = new Map<number, number>();
    for (const { core, isAlive } of this.#processes) {
      const { epoch, members } = core.running ?? { epoch: 0, members: [] };
      if (isAlive && epoch > 0) {
        running.set(epoch, (running.get(epoch) ?? 0) + 1);
        if (running.get(epoch) === members.length) {
          const { newest } = this.#rules;
          expectThat(epoch === newest, `epochs ${epoch} and ${newest} are both whole`);
        }
      }
    }
  }

  /** Lets everything heal, after which the job goes on or has ended for a reason. */
  #settle(): void {
    this.#cut.clear();
    for (const process of this.#processes) {
      process.isStopped = false;
    }
    for (let round = 0; round < 200 && !this.#hasSettled(); round++) {
      this.#live(700);
      for (const process of this.#processes.filter((one) => one.acts)) {
        this.#missLost(process);
      }
      this.#check();
    }
    const { phase, members, waiting } = this.#post.status;
    const numLiving = this.#processes.filter((process) => process.acts).length;
    const rest = `${waiting.join()} wait; ${numLiving} live`;
    expectThat(this.#hasSettled(), `it is ${phase} with ${members.join()}, and ${rest}`);
    this.#figures.numEnded += phase === 'running' ? 0 : 1;
    this.#figures.numEpochs += this.#rules.numEpochs;
    this.#figures.numSteps += this.#rules.numSteps;
  }

  /** Whether all who live are at work, or wait for a place, or the job has ended for all. */
  #hasSettled(): boolean {
    const { phase, epoch, members } = this.#post.status;
    const living = this.#processes.filter((process) => process.acts);
    const working = living.filter(({ core }) => core.running?.epoch === epoch);
    const isWhole = members.length === Math.min(this.#options.max, living.length);
    return (
      living.length === 0 || (phase === 'running' && isWhole && working.length === members.length)
    );
  }

  /** A member at work notices those who are not at work with it. */
  #missLost(one: ScheduledProcess): void {
    const { running } = one.core;
    for (const { id } of running?.members ?? []) {
      const peer = this.#processes.find((process) => process.core.id === id);
      if (peer === undefined || !peer.acts) {
        one.core.lose(running!.epoch, [id], 'silent');
      } else if (peer.core.running?.epoch !== running!.epoch && !peer.isWaiting) {
        this.#stopAtEdge(peer);
      }
    }
    if (running === undefined && !one.isWaiting && one.core.id !== undefined) {
      this.#stopAtEdge(one);
    }
  }
}

const KINDS = [
  'deliver',
  'deliver',
  'deliver',
  'deliver',
  'tick',
  'tick',
  'step',
  'step',
  'link',
  'link',
  'edge',
  'come',
  'kill',
  'stop',
  'wake',
  'hang up',
  'cut',
  'heal',
  'leave',
  'restart',
] as const;

/** How often an event happens that was drawn. Default: always. */
const RARE: Partial<Record<(typeof KINDS)[number], number>> = {
  edge: 0.3,
  kill: 0.3,
  stop: 0.5,
  leave: 0.1,
  restart: 0.2,
  cut: 0.5,
};

function pairOf(a: number, b: number): string {
  return a < b ? `${a} ${b}` : `${b} ${a}`;
}

function knownOf({ epoch, members, before, source }: Table<null>): KnownEpoch {
  const joined = members.map(({ id }) => id).filter((id) => !before.includes(id));
  return { number: epoch, members, joined, source, step: members[source]!.step };
}
