// An elastic job whose ranks are all in this process: it is disturbed after so many calls, and told
// as its launcher would be told of it.

import type { ProcessGroup, TraceHandler } from '@shardweave/collectives';
import {
  type Epoch,
  type EpochMember,
  type Member,
  MemoryElasticJob,
} from '@shardweave/collectives/elastic';
import type { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { Device } from '@shardweave/tensor-core';
import { resolveConfig } from '../../src/config/resolve-config.js';
import { prepareTokens } from '../../src/data/prepare-tokens.js';
import { deferred } from '../../src/launch/watch-ranks.js';
import { DeviceHost } from '../../src/rank/device-host.js';
import type { ElasticLead } from '../../src/rank/elastic/elastic-options.js';
import { runElasticRank } from '../../src/rank/elastic/elastic-rank.js';
import { isBehind, noteOf, noteText } from '../../src/rank/elastic/place.js';
import type { StepMetrics } from '../../src/rank/events.js';
import { hashOf } from '../../src/rank/strategies/model-saves.js';
import type { PreparedRun } from '../../src/run-config.js';
import { parseFlags } from './parse-flags.js';

export interface Disturbance {
  /** The number of calls that ranks have ended, all together, or the tag of the first that has. */
  readonly when: number | string;
  readonly what: 'kill' | 'leave' | 'join';
  /** Which of the ranks there are; by default the first. */
  readonly pick?: number;
}

export interface ElasticTold {
  /** The hashes of weights and optimizer state that ranks ended with. */
  readonly hashes: readonly string[];
  /** What was told of each step, from the first; a repeat has replaced what was told before. */
  readonly steps: readonly StepMetrics[];
  /** The number of ranks in each epoch that began. */
  readonly sizes: readonly number[];
  /** How many ranks have ended a step by themselves, as they were behind by its decision alone. */
  readonly numFinished: number;
  /**
   * The bytes on a device when an epoch begins, where it had stepped before; each once, by the
   * number of ranks.
   */
  readonly bytes: ReadonlyMap<number, ReadonlySet<number>>;
  /** The numbers of groups that the ranks of the last epoch had, by their ids. */
  readonly dealt: ReadonlyMap<number, number>;
  /** What was done, and the number of calls. */
  readonly done: readonly string[];
  readonly numCalls: number;
  /** The ids of ranks that had computed something before they asked to be part of the job. */
  readonly warm: ReadonlySet<number>;
  readonly errors: readonly unknown[];
  /** The steps at which ranks were asked to save as too few were left. */
  readonly kept: readonly number[];
}

/** These ranks are heard, and leave nothing. */
const NO_LEAD: ElasticLead = {
  endsJob: false,
  begin: async () => undefined,
  record: async () => {},
  afterStep: async () => {},
  settle: async () => {},
  keep: async () => {},
  stop: async () => {},
  end: async () => {},
};

/** The most ranks of a job. */
const MOST = 8;

interface LiveRank {
  readonly leaving: AbortController;
  /** Ends the wait for a rank that is killed, whose own calls never end. */
  readonly kill: () => void;
  /** Whether it has the state of the job. */
  hasState: boolean;
  /** Whether the command has started it, and so hears it. Only others leave by themselves. */
  readonly isLed: boolean;
}

export async function preparedRun(flags: string): Promise<PreparedRun> {
  const config = await resolveConfig(parseFlags(flags.split(' '), () => {}));
  return { ...config, tokens: await prepareTokens(config, { entry: '' }) };
}

export interface ElasticJobOptions {
  /** The number of ranks at first. */
  readonly ranks: number;
  /** The run of the ranks that join later; the same by default. */
  readonly joining?: PreparedRun;
  /** By id, the milliseconds of a group of rows that a member tells in place of those it took. */
  readonly groupMs?: readonly number[] | undefined;
  /** The fewest ranks, below which the job ends at once; by default one. */
  readonly min?: number;
  /**
   * A rank that takes part in the decision of step `step` (from 1), and hears nothing of it. When
   * that step is told, the member `kill` is killed.
   */
  readonly deaf?: { readonly id: number; readonly step: number; readonly kill: number };
}

export async function elasticJob(
  config: PreparedRun,
  disturbances: readonly Disturbance[],
  { ranks, joining = config, min = 1, groupMs, deaf }: ElasticJobOptions,
): Promise<ElasticTold> {
  const job = new MemoryElasticJob({ min, max: MOST, settleMs: 1, shortMs: 1 });
  await using host = new DeviceHost();
  const backend = await host.open('cpu', { threads: 1 });
  const live = new Map<number, LiveRank>();
  const left = new Set(disturbances);
  /** Those who are not in an epoch yet; a step waits for them, so that a join is no luck. */
  const coming = new Set<number>();
  const all: Promise<unknown>[] = [];
  const steps: StepMetrics[] = [];
  const hashes: string[] = [];
  const done: string[] = [];
  const errors: unknown[] = [];
  const bytes = new Map<number, Set<number>>();
  const kept: number[] = [];
  const sizes = new Map<number, number>();
  const numFinished = new Map<number, number>();
  const warm = new Set<number>();
  const dealt = new Map<number, number>();
  let numCalls = 0;

  const disturb = ({ what, pick = 0 }: Disturbance) => {
    if (what === 'join') {
      all.push(start(joining, true));
      return;
    }
    const able = [...live].filter(([, { isLed }]) => what === 'kill' || !isLed);
    const others = [...live].filter(([id]) => id !== able[pick % able.length]?.[0]);
    const isGoingOn = others.some(([, one]) => one.hasState) && others.some(([, one]) => one.isLed);
    if (able.length === 0 || !isGoingOn) {
      return; // nobody would be left to go on
    }
    const [id, rank] = able[pick % able.length]!;
    live.delete(id);
    coming.delete(id);
    done.push(`${what} ${id} after ${numCalls}`);
    if (what === 'kill') {
      job.kill(id);
      rank.kill();
    } else {
      rank.leaving.abort();
    }
  };
  const onCall: TraceHandler = ({ tag }) => {
    numCalls += 1;
    for (const one of left) {
      if (typeof one.when === 'number' ? one.when <= numCalls : one.when === tag) {
        left.delete(one);
        disturb(one);
      }
    }
  };
  /** The first epoch has all who are there from the first, whoever is ready before others. */
  const begun = deferred();
  let numReady = 0;
  const begin = () => {
    numReady += 1;
    if (numReady === ranks) {
      begun.resolve();
    }
    return begun.promise;
  };
  const beginWith = (device: Device, id: number) => () => {
    if (live.get(id)?.hasState === false && device.memory().peak.gradient > 0) {
      warm.add(id);
    }
    return begin();
  };
  const start = async (run: PreparedRun, isNewcomer = false) => {
    const member = await job.join();
    const killed = deferred();
    let isKilled = false;
    const kill = () => {
      isKilled = true;
      killed.resolve();
    };
    const isAtWork = () => !isKilled && job.status.phase === 'running';
    const isLed = member.id % 4 !== 1;
    const rank: LiveRank = { leaving: new AbortController(), kill, hasState: false, isLed };
    live.set(member.id, rank);
    coming.add(member.id);
    const device = new Device(backend, { seed: run.seed });
    const running = runElasticRank({
      config: run,
      member: watched(member, { onCall, begin: beginWith(device, member.id), groupMs }, (group) => {
        coming.delete(member.id);
        let step = 0; // those who are deaf are there from the first
        aroundDecisions(group, async (decide) => {
          step += 1;
          const isRoom = group.worldSize < MOST;
          while (coming.size > 0 && isRoom && !member.isChangeDue && isAtWork()) {
            await new Promise((resolve) => setTimeout(resolve, 1));
          }
          await decide();
          if (member.id === deaf?.id && step === deaf.step) {
            await group.recv(new Uint8Array(1), { from: 0 }); // until the epoch is over
          }
        });
      }),
      ...{ device, isNewcomer },
      emit: (event) => {
        if (event.type === 'step' && !isKilled) {
          steps[event.metrics.step - 1] = event.metrics;
          if (event.metrics.step === deaf?.step && live.has(deaf.kill)) {
            disturb({ when: 0, what: 'kill', pick: [...live.keys()].indexOf(deaf.kill) });
          }
        }
      },
      onEpoch: ({ number, members, step }, live) => {
        rank.hasState = true;
        sizes.set(number, members.length);
        const isDone = (one: EpochMember) => one.step < step && !isBehind(one, step);
        numFinished.set(number, members.filter(isDone).length);
        if (step > 0) {
          bytes.set(members.length, (bytes.get(members.length) ?? new Set()).add(live));
        }
      },
      lead: isLed ? { ...NO_LEAD, keep: async ({ step }) => void kept.push(step) } : undefined,
      onEnd: async ({ strategy }) => {
        hashes[member.id] = await hashOf(strategy);
        const { groupCalls } = strategy.module as unknown as DistributedDataParallel;
        dealt.set(member.id, groupCalls.filter((group) => group !== undefined).length);
      },
      wrapUp: rank.leaving.signal,
      signal: new AbortController().signal,
    })
      .then(
        () => device.dispose(),
        (error: unknown) => void (isKilled || errors.push(error)),
      )
      .finally(() => {
        live.delete(member.id);
        coming.delete(member.id);
      });
    await Promise.race([running, killed.promise]);
  };
  for (let rank = 0; rank < ranks; rank++) {
    all.push(start(config));
  }
  for (const one of all) {
    await one; // more of them come meanwhile
  }
  const finished = [...numFinished.values()].reduce((sum, count) => sum + count, 0);
  const told = { hashes: hashes.filter(Boolean), steps, sizes: [...sizes.values()] };
  return { ...told, numFinished: finished, bytes, warm, dealt, done, numCalls, errors, kept };
}

/** A member whose groups tell of each call that has ended. */
function watched(
  member: Member,
  {
    onCall,
    begin,
    groupMs,
  }: Pick<ElasticJobOptions, 'groupMs'> & {
    readonly onCall: TraceHandler;
    readonly begin: () => Promise<void>;
  },
  onGroup: (group: ProcessGroup) => void,
): Member {
  return {
    id: member.id,
    about: member.about,
    get isChangeDue() {
      return member.isChangeDue;
    },
    reform: async (edge): Promise<Epoch> => {
      await begin();
      const told = edge.note === undefined ? undefined : noteOf({ note: edge.note });
      const isTold = told?.groupMs !== undefined && groupMs !== undefined;
      const note = isTold && { note: noteText({ ...told, groupMs: groupMs[member.id] }) };
      const epoch = await member.reform({ ...edge, ...note });
      epoch.group.onTrace = onCall;
      onGroup(epoch.group);
      return epoch;
    },
    leave: () => member.leave(),
    [Symbol.asyncDispose]: () => member.leave(),
  };
}

/** Runs `around` in place of each call in which ranks decide on a step. */
function aroundDecisions(
  world: ProcessGroup,
  around: (decide: () => Promise<void>) => Promise<void>,
): void {
  const split = world.split.bind(world);
  world.split = async (...args) => {
    const group = await split(...args);
    const allReduce = group.allReduce.bind(group);
    group.allReduce = (input, output, options) => {
      const call = () => allReduce(input, output, options);
      return options.tag === 'loss' ? around(call) : call();
    };
    return group;
  };
}
