// Members of elastic jobs over memory do steps on a virtual clock while others are killed, leave
// and come, and the coordinator is started again. Each step has one state, whoever did it and
// however often; at the end all who live work together.

import type { ReduceHook } from '@shardweave/collectives';
import { createSimulationResources, SeededRandom } from '@shardweave/collectives/testing';
import { expect, it } from 'vitest';
import type { Clock } from '../src/clock.js';
import type { Epoch } from '../src/membership/member.js';
import { VirtualTime } from '../src/testing/simulator/virtual-time.js';
import { MemoryElasticJob } from '../src/transports/memory-elastic.js';
import { CountingMember, StepStates } from './support/counting-member.js';

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
  readonly #living = new Set<CountingMember>();
  readonly states = new StepStates();
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
    const worker = new CountingMember(await this.#job.join(), {
      done: (_, step, state) => this.states.add(step, state),
      pause: () => this.#time.sleep(PAUSE_MS),
    });
    this.#living.add(worker);
    try {
      await worker.run();
    } catch (error) {
      if (!worker.isOver) {
        this.#living.delete(worker);
        throw error;
      }
    }
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
    schedule.states.check();
    const numWorking = Math.min(5, schedule.numLiving);
    const newest = Math.max(...epochs.map(({ number }) => number));
    const working = epochs.filter(({ number }) => number === newest);
    expect(working.length, what).toBe(numWorking);
    numSteps += schedule.states.numSteps;
    numLosses += schedule.numLosses;
  }
  const ended = `${numEnded} ended`;
  process.stdout.write(`${NUM_SCHEDULES} jobs: ${numLosses} losses, ${numSteps} steps, ${ended}\n`);
  expect(numLosses).toBeGreaterThan(NUM_SCHEDULES);
  expect(numEnded).toBeLessThan(NUM_SCHEDULES / 2);
});
