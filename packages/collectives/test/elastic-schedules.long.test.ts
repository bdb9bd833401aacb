// Members of elastic jobs over memory do steps on a virtual clock while others are killed, leave
// and come, and the coordinator is started again. Each step has one state, whoever did it and
// however often; at the end all who live work together.

import type { ReduceHook } from '@shardweave/collectives';
import { createSimulationResources, SeededRandom } from '@shardweave/collectives/testing';
import { expect, it } from 'vitest';
import type { Clock } from '../src/clock.js';
import { EpochOverError } from '../src/errors.js';
import type { Epoch, Member } from '../src/membership/member.js';
import { VirtualTime } from '../src/testing/simulator/virtual-time.js';
import { MemoryElasticJob } from '../src/transports/memory-elastic.js';

const NUM_SCHEDULES = Number(process.env.SHARDWEAVE_ELASTIC_SCHEDULES ?? 200);
const MAX_EVENTS = 200_000;
/** The virtual milliseconds in which things happen, and those in which the job comes to rest. */
const BUSY_MS = 3000;
const CALM_MS = 3000;
/** The pause between two steps of a member. */
const PAUSE_MS = 40;

const FAST = { settleMs: 50, suspectMs: 200, recoverMs: 500, shortMs: 500 };

/** All with the state are dead; or a coordinator that knew nothing found half of the job. */
const ENDINGS =
  /nobody is left who has its state|have come again|nobody has come who was in it|: it has ended/;

class Schedule {
  readonly #random: SeededRandom;
  readonly #time = new VirtualTime();
  readonly #job: MemoryElasticJob;
  readonly #living = new Set<Worker>();
  /** The state after each step. */
  readonly states = new Map<number, number>();
  readonly errors: string[] = [];
  numLosses = 0;

  constructor(seed: number, reduce: ReduceHook) {
    this.#random = new SeededRandom(seed);
    const clock: Clock = {
      now: () => this.#time.nowMs,
      setTimer: (ms, callback) => this.#time.after(ms, callback),
      turn: () => new Promise((resolve) => setImmediate(resolve)),
    };
    this.#job = new MemoryElasticJob({ min: 1, max: 5, clock, reduce, ...FAST });
  }

  /** Resolves with the epochs of those who live at the end. */
  async run(): Promise<readonly Epoch[]> {
    for (let i = 0; i < 3; i++) {
      this.#come();
    }
    for (let i = 0; i < 8; i++) {
      this.#time.after(this.#random.between(100, BUSY_MS), () => this.#happen());
    }
    const end = BUSY_MS + CALM_MS;
    this.#time.after(end, () => {
      for (const worker of this.#living) {
        worker.isOver = true;
      }
    });
    await this.#time.run(MAX_EVENTS);
    return [...this.#living].flatMap(({ epoch }) => epoch ?? []);
  }

  get numLiving(): number {
    return this.#living.size;
  }

  #happen(): void {
    const worker = this.#random.pick([...this.#living]);
    const kind = this.#random.pick(['kill', 'kill', 'leave', 'come', 'come', 'restart'] as const);
    if (kind === 'come') {
      this.#come();
    } else if (kind === 'restart') {
      this.#job.restartCoordinator();
    } else if (this.#living.size > 1) {
      this.numLosses++;
      this.#living.delete(worker);
      worker.isOver = true;
      if (kind === 'kill') {
        this.#job.kill(worker.member.id);
      } else {
        void worker.member.leave();
      }
    }
  }

  #come(): void {
    this.#work().catch((error: unknown) => this.errors.push(String(error)));
  }

  async #work(): Promise<void> {
    const member = await this.#job.join();
    const worker = new Worker(member, this);
    this.#living.add(worker);
    try {
      await worker.run(this.#time);
    } catch (error) {
      if (!worker.isOver) {
        this.#living.delete(worker);
        throw error;
      }
    }
  }

  done(step: number, state: number): void {
    expect(this.states.get(step) ?? state).toBe(state);
    this.states.set(step, state);
  }
}

class Worker {
  readonly member: Member;
  epoch: Epoch | undefined;
  isOver = false;
  readonly #schedule: Schedule;
  #step = 0;
  #state = 1;

  constructor(member: Member, schedule: Schedule) {
    this.member = member;
    this.#schedule = schedule;
  }

  async run(time: VirtualTime): Promise<void> {
    let isStopped = true;
    while (!this.isOver) {
      try {
        if (isStopped) {
          this.epoch = await this.member.reform({ step: this.#step });
          await this.#copyState(this.epoch);
        }
        isStopped = await this.#doStep(this.epoch!);
        await time.sleep(PAUSE_MS);
      } catch (error) {
        if (!(error instanceof EpochOverError)) {
          throw error;
        }
        isStopped = true;
      }
    }
  }

  async #doStep({ group }: Epoch): Promise<boolean> {
    const own = Int32Array.of(this.member.isChangeDue ? 1 : 0, this.#step, -this.#step);
    const most = new Int32Array(3);
    const options = { dtype: 'i32', op: 'max' } as const;
    await group.allReduce(new Uint8Array(own.buffer), new Uint8Array(most.buffer), options);
    expect([most[1], 0 - most[2]!]).toEqual([this.#step, this.#step]);
    this.#state = (this.#state * 31 + this.#step) % 65_521;
    this.#step++;
    this.#schedule.done(this.#step, this.#state);
    return most[0] === 1;
  }

  async #copyState({ group, source, step }: Epoch): Promise<void> {
    const state = Int32Array.of(this.#state);
    await group.broadcast(new Uint8Array(state.buffer), { root: source });
    this.#state = state[0]!;
    this.#step = step;
  }
}

it(`each step has one state through ${NUM_SCHEDULES} schedules`, { timeout: 600_000 }, async () => {
  // A reducer is made in real time, in which the virtual one would pass.
  const { reducer } = await createSimulationResources();
  const reduce: ReduceHook = (parts, output, options) => reducer.reduce(parts, output, options);
  let numSteps = 0;
  let numLosses = 0;
  let numEnded = 0;
  for (let seed = 1; seed <= NUM_SCHEDULES; seed++) {
    const schedule = new Schedule(seed, reduce);
    const epochs = await schedule.run();
    const what = `seed ${seed}`;
    const known = schedule.errors.filter((error) => ENDINGS.test(error));
    expect(schedule.errors, what).toEqual(known);
    if (known.length > 0) {
      expect(schedule.numLiving, what).toBe(0);
      numEnded++;
      continue;
    }
    const steps = [...schedule.states.keys()];
    expect(steps.length, what).toBe(Math.max(...steps));
    const numWorking = Math.min(5, schedule.numLiving);
    const newest = Math.max(...epochs.map(({ number }) => number));
    const working = epochs.filter(({ number }) => number === newest);
    expect(working.length, what).toBe(numWorking);
    numSteps += steps.length;
    numLosses += schedule.numLosses;
  }
  const ended = `${numEnded} ended`;
  process.stdout.write(`${NUM_SCHEDULES} jobs: ${numLosses} losses, ${numSteps} steps, ${ended}\n`);
  expect(numLosses).toBeGreaterThan(NUM_SCHEDULES);
  expect(numEnded).toBeLessThan(NUM_SCHEDULES / 2);
});
