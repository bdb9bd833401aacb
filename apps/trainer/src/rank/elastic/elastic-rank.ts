// A rank of a job whose ranks change while it trains. All of them have the whole model and the
// state of its optimizer, so whoever is left goes on, and who comes copies.
//
//   reform    stop, and hear who is there and whose state is the newest
//   catch up  end the last step by itself, or copy weights and optimizer     who is behind
//   wrap      the replica in a wrapper on the new group; rows are dealt anew
//   train     until an edge at which somebody waits, or until a rank is lost
//
// Note [same bits]
// A step's rows are in groups, whose gradients and losses are added in a fixed order, and whoever
// computes a group gets the same bits. So it does not matter who did which step, how often it was
// begun, or who was there: weights and optimizer state are a function of the step alone.

import { setTimeout as delay } from 'node:timers/promises';
import { PeerFailedError } from '@shardweave/collectives';
import {
  type Epoch,
  EpochOverError,
  type Member,
  MembershipError,
} from '@shardweave/collectives/elastic';
import type { Device } from '@shardweave/tensor-core';
import type { RunData } from '../../data/dataset.js';
import { dealtRows } from '../../data/dealt-rows.js';
import { openData } from '../../data/open-data.js';
import { UsageError } from '../../errors.js';
import { type OpenedOwnModel, openOwnModel } from '../../own-model/open-own-model.js';
import type { PreparedRun } from '../../run-config.js';
import type { CommWatch } from '../comm-watch.js';
import type { EmitRankEvent } from '../events.js';
import { openObjective } from '../objectives/open-objective.js';
import { RankWatch } from '../rank-watch.js';
import { type Asked, readAsked } from '../step/answers.js';
import { evaluate } from '../step/evaluation.js';
import { TrainingStep } from '../step/training-step.js';
import { joinAdapters, openAdapters } from '../strategies/adapters.js';
import {
  joinReplicas,
  openReplica,
  type Replica,
  type ReplicaStrategy,
} from '../strategies/ddp.js';
import { hashOf } from '../strategies/model-saves.js';
import { openRankGroups } from '../strategies/open-strategy.js';
import type { RankGroups, TaskStrategy } from '../strategies/strategy.js';
import { sumOverRanks } from '../strategies/sum-over-ranks.js';
import { type AfterStep, type Reached, trainLoop } from '../train-loop.js';
import { isBehind, type Note, noteOf, noteText, type Place, ranksInOrder } from './place.js';
import { proofOf } from './proof.js';
import { warmUp } from './warm-up.js';

/** The time between two looks for somebody of whom the leading process hears. */
const WAIT_MS = 100;

export interface ElasticRankOptions {
  /** A run with gradientGroups; how many ranks it has is not asked. */
  readonly config: PreparedRun;
  readonly member: Member;
  readonly device: Device;
  /** Whether the job is at work already, as far as this rank knows. */
  readonly isNewcomer: boolean;
  readonly emit: EmitRankEvent;
  /** Undefined on a rank that the process which leads the job does not hear. */
  readonly lead?: ElasticLead | undefined;
  /** What measures its steps for those who watch the run, and its number there. */
  readonly watched?: { readonly comm: CommWatch; readonly rank: number } | undefined;
  /** Called when an epoch begins, before its first step, with the bytes that the device holds. */
  readonly onEpoch?: ((epoch: Epoch, bytes: number) => void) | undefined;
  /** Called with each step that is done, of this epoch or, at its beginning, of the one before. */
  readonly onUpdated?: ((reached: Reached) => void) | undefined;
  /** Called when all steps are done. Collective; again where a rank is lost meanwhile. */
  readonly onEnd?: (ended: ElasticEnd) => Promise<void>;
  /** Makes the rank leave after the present step; the others go on without it, or stop too. */
  readonly wrapUp: AbortSignal;
  readonly signal: AbortSignal;
}

export interface ElasticEnd {
  readonly rank: number;
  readonly groups: RankGroups;
  readonly strategy: TaskStrategy;
  readonly watch: RankWatch;
  readonly reached: Reached;
}

/** What the first rank of an epoch does for the job, by itself, while the others wait or go on. */
export interface ElasticLead {
  /** Whether a wish to wrap up ends the job for all; else this rank alone leaves. */
  readonly endsJob: boolean;
  /** Where the job begins, and its state, such as that of a save; undefined for the first step. */
  begin(opened: Opened): Promise<Place | undefined>;
  /** Tells what the steps begin with. */
  record(): Promise<void>;
  /** Does what follows a step: a text, a save. */
  afterStep(progress: AfterStep, at: LeadPlace): Promise<void>;
  /** The job stops after this step, as it was asked to. */
  stop(reached: Reached): Promise<void>;
  /** All steps are done. */
  end(ended: ElasticEnd): Promise<void>;
}

export interface LeadPlace extends Pick<Place, 'scaler'> {
  /** Whether the job stops after the step. */
  readonly isStopping: boolean;
}

/** What a rank has for as long as it lives. */
export interface Opened {
  readonly data: RunData;
  readonly replica: Replica;
  readonly own: OpenedOwnModel | undefined;
  readonly proof: string;
  readonly numericClass: string;
  /** What the model is asked at each evaluation. */
  readonly asked: Asked | undefined;
}

/** What a rank has for an epoch. */
interface AtWork {
  readonly config: PreparedRun & { readonly gradientGroups: number };
  readonly groups: RankGroups;
  readonly strategy: TaskStrategy & ReplicaStrategy;
  readonly step: TrainingStep;
  readonly watch: RankWatch;
}

/**
 * Trains as a member of an elastic job, from its first step or from where the others are.
 * @returns how far the job came; undefined where this rank was asked to leave before
 * @throws {MembershipError} where the job goes on without this rank, or not at all
 * @throws {UsageError} where the others train something else
 */
export async function runElasticRank(options: ElasticRankOptions): Promise<Reached | undefined> {
  const { config, device, member } = options;
  try {
    const { gradientGroups: ranks } = requireElastic(config);
    await using data = await openData({ ...config, ranks, strategy: 'ddp' }, config.tokens);
    const own = await openOwnModel(device, config);
    const numericClass = await device.numericClass();
    const proof = await proofOf(config, numericClass);
    const asked = await readAsked(config);
    const open = config.strategy === 'fsdp' ? openAdapters : openReplica;
    const replica = await open({ device, config, own });
    const opened = { data, own, proof, numericClass, replica, asked };
    const rank = new ElasticRank(options, opened);
    try {
      if (options.isNewcomer && config.strategy === 'ddp') {
        await warmUp(device, config, opened);
      }
      return await rank.run();
    } finally {
      rank.dispose();
    }
  } finally {
    await member.leave();
  }
}

/** @throws {UsageError} for a run whose bits depend on its ranks, or that needs all of them */
function requireElastic(config: PreparedRun): AtWork['config'] {
  const { gradientGroups, strategy, head, lora } = config;
  const isHeldByAll = strategy === 'ddp' || (strategy === 'fsdp' && lora !== undefined);
  if (gradientGroups === undefined || !isHeldByAll) {
    throw new UsageError(
      `an elastic job: expected --strategy ddp, or fsdp with --lora-rank, with --gradient-groups, got --strategy ${strategy} and ${gradientGroups === undefined ? 'none' : `--gradient-groups ${gradientGroups}`}. Any rank may be lost, so each needs all that is trained, and bits that do not depend on the others.`,
    );
  }
  if (head.kind !== 'lm') {
    throw new UsageError(
      `an elastic job: expected --task lm, got ${head.kind}. Train that with a fixed number of ranks.`,
    );
  }
  return { ...config, gradientGroups };
}

class ElasticRank {
  readonly #options: ElasticRankOptions;
  readonly #opened: Opened;
  #place: Place = { step: 0, updates: 0, isTold: true };
  /** The present epoch, or the last one until the next begins. */
  #work: AtWork | undefined;
  /** How the job ended, as far as this rank is concerned. */
  #ended: Reached | undefined;
  /** Whether this rank ends with the present step: it leaves, or the job is over. */
  #isStopping = false;

  constructor(options: ElasticRankOptions, opened: Opened) {
    this.#options = options;
    this.#opened = opened;
  }

  async run(): Promise<Reached | undefined> {
    const { signal, wrapUp, lead } = this.#options;
    this.#place = (await lead?.begin(this.#opened)) ?? this.#place;
    for (;;) {
      signal.throwIfAborted();
      try {
        const reached = await this.#inEpoch(await this.#reform());
        if (reached !== undefined && reached.early !== 'asked') {
          return reached;
        }
        if (this.#isStopping || (reached === undefined && wrapUp.aborted)) {
          return undefined;
        }
      } catch (error) {
        if (!isEpochOver(error)) {
          // Those that have ended leave, and then there may be too few for another epoch.
          const isOver = this.#ended !== undefined || this.#isLeaving;
          if (isOver && error instanceof MembershipError) {
            return this.#ended;
          }
          throw error;
        }
      }
      if (this.#work?.step.undecided === undefined) {
        this.#unwrap();
      }
    }
  }

  /** Waits for the next epoch, or leaves where this rank is asked to meanwhile. */
  async #reform(): Promise<Epoch> {
    const { member, wrapUp } = this.#options;
    const leave = () => void (this.#isLeaving && member.leave());
    wrapUp.addEventListener('abort', leave, { once: true });
    try {
      leave();
      return await member.reform({ step: this.#place.step, note: this.#note() });
    } finally {
      wrapUp.removeEventListener('abort', leave);
    }
  }

  /** Whether this rank leaves and the job goes on. */
  get #isLeaving(): boolean {
    const { lead, wrapUp } = this.#options;
    return wrapUp.aborted && lead?.endsJob !== true;
  }

  /** Frees what the rank has on the device. */
  dispose(): void {
    this.#unwrap();
    this.#opened.replica.optimizer.dispose();
    this.#opened.replica.dispose();
  }

  #unwrap(): void {
    this.#work?.strategy.unwrap();
    this.#work = undefined;
  }

  #note(): string {
    const { proof } = this.#opened;
    const undecided = this.#work?.step.undecided;
    const isAttached = this.#options.lead !== undefined;
    return noteText({ isAttached, proof, undecided, place: this.#place });
  }

  /** Resolves with undefined where the epoch has ended before a step, for other members. */
  async #inEpoch(epoch: Epoch): Promise<Reached | undefined> {
    const { device, lead, onEpoch, onEnd } = this.#options;
    const source = noteOf(epoch.members[epoch.source]!);
    this.#requireSame(source);
    const order = ranksInOrder(epoch.members, epoch.source);
    if (order === undefined) {
      await this.#waitForOthers(epoch);
      return undefined;
    }
    const isCopying = isBehind(epoch.members[epoch.group.rank]!, epoch.step);
    if (!isCopying) {
      if (this.#place.step < epoch.step) {
        await this.#work!.step.finish();
      }
      this.#place = source.place;
    }
    this.#unwrap();
    const work = await this.#wrap(epoch, { order, place: source.place });
    this.#work = work;
    this.#place = source.place; // who was behind has the state by now
    onEpoch?.(epoch, device.memory().live.total);
    const { groups, strategy, watch } = work;
    const { rank } = groups.gather;
    if (rank === 0 && this.#place.last === undefined) {
      await lead?.record();
    }
    const reached = await this.#train(work);
    if (reached.early === 'asked') {
      if (this.#isStopping && !this.#isLeaving) {
        // Nobody leaves before all know the decision, or some would compute the step again.
        await groups.gather.barrier().catch(() => undefined);
      }
      if (rank === 0 && this.#isStopping) {
        await lead?.stop(reached);
      }
      return reached;
    }
    const ended: ElasticEnd = { rank, groups, strategy, watch, reached };
    await onEnd?.(ended);
    if (rank === 0) {
      await lead?.end(ended);
    }
    await groups.gather.barrier();
    this.#ended = reached;
    // Nobody leaves before all know that it is done, or some would do it again.
    await groups.gather.barrier().catch(() => undefined);
    return reached;
  }

  /** Waits in an epoch of which nobody would hear, until it ends or somebody comes. Collective. */
  async #waitForOthers({ group }: Epoch): Promise<void> {
    const { member, wrapUp } = this.#options;
    for (let isDue = false; !isDue; ) {
      await delay(WAIT_MS);
      const asked = Number(member.isChangeDue || wrapUp.aborted);
      isDue = (await sumOverRanks(asked, group, 'waiting')) > 0;
    }
  }

  /** @throws {UsageError} where the job trains something else than this rank */
  #requireSame({ proof }: Note): void {
    if (proof !== this.#opened.proof) {
      throw new UsageError(
        `this rank can't join the job: expected its flags, model, data and numeric class (${this.#opened.numericClass}) to be those of the others, got another. Give the same ones, on a device of the same class.`,
      );
    }
  }

  /** Wraps the replica for an epoch, and sends the state to those who are behind. Collective. */
  async #wrap(
    { group, source, members, step: at }: Epoch,
    { order, place }: { readonly order: readonly number[]; readonly place: Place },
  ): Promise<AtWork> {
    const { device, emit, member, wrapUp, lead, watched } = this.#options;
    const { replica, data, own } = this.#opened;
    const gather = await group.split(0, order.indexOf(group.rank));
    const root = order.indexOf(source);
    if (watched !== undefined) {
      gather.onTrace = watched.comm.onCall;
    }
    const groups = await openRankGroups(gather);
    const { rank, worldSize: ranks } = gather;
    const whole = requireElastic(this.#options.config);
    // Groups are dealt in one way to all who have what is trained whole.
    const config = { ...whole, ranks, strategy: 'ddp' } as const;
    const join = whole.strategy === 'fsdp' ? joinAdapters : joinReplicas;
    const wrapped = await join(
      replica,
      { config, groups, own },
      { isFirst: at === 0, isCopied: members.some((other) => isBehind(other, at)), root },
    );
    const objective = openObjective({ device, module: wrapped.module, config, groups, own });
    const strategy = { ...wrapped, objective, onlyTrained: own === undefined };
    const told = { rank: watched?.rank ?? rank, emit };
    const watch = new RankWatch({ options: told, device, groups, comm: watched?.comm });
    const step = new TrainingStep({
      config,
      rank,
      device,
      strategy,
      group: gather,
      data: dealtRows(data.train, config),
      onPhase: watch.onPhase,
      uncounted: (body) => watch.counter.pause(body),
      stopWish: () => {
        // Where the leading process wraps up all its ranks hear of it, each in a moment of its own.
        const isOver = wrapUp.aborted && lead?.endsJob === true;
        return isOver ? 'end' : member.isChangeDue || wrapUp.aborted ? 'stop' : 'go on';
      },
    });
    step.loadScaler(place.scaler);
    return { config, groups, strategy, step, watch };
  }

  #train({ config, groups, strategy, step, watch }: AtWork): Promise<Reached> {
    const { device, emit, signal, lead, onUpdated } = this.#options;
    const { data, numericClass, asked } = this.#opened;
    const { gather: group } = groups;
    const { rank } = group;
    const { last, isTold, ...from } = this.#place;
    const tell: EmitRankEvent = (event) => rank === 0 && emit(event);
    const valid = data.valid && dealtRows(data.valid, config);
    if (last !== undefined && isTold) {
      tell({ type: 'step', ...last }); // whoever was to tell it may be gone
    }
    return trainLoop({
      config,
      signal,
      from: { ...from, untold: isTold ? undefined : last },
      rows: data.train.size.rows,
      tokensBefore: last?.metrics.tokens ?? 0,
      onUpdated: ({ metrics, resources, ...reached }) => {
        const { scaler } = step;
        const { step: at, updates, best } = reached;
        this.#place = { ...{ step: at, updates, best, scaler }, ...toTell({ metrics, resources }) };
        onUpdated?.(reached);
      },
      onStep: (metrics, resources) => {
        this.#place = { ...this.#place, ...toTell({ metrics, resources }) };
        tell({ type: 'step', metrics, resources });
      },
      afterStep: async (progress) => {
        if (rank === 0) {
          const at = { scaler: step.scaler, isStopping: this.#isStopping };
          await watch.counter.pause(async () => lead?.afterStep(progress, at));
        }
        const { best, validLoss } = progress;
        this.#place = { ...this.#place, best, validLoss, isTold: true };
        return false;
      },
      runner: {
        runStep: async (stepIndex, lr) => {
          watch.begin(stepIndex);
          const outcome = await step.run(stepIndex, lr);
          this.#isStopping = outcome.stop === 'end' || (outcome.stop === 'stop' && this.#isLeaving);
          return outcome;
        },
        evaluate:
          valid &&
          (() =>
            watch.counter.pause(() =>
              evaluate({ config, rank, device, strategy, group, data: valid, asked, signal }),
            )),
        hash:
          config.hashEvery === undefined
            ? undefined
            : () =>
                watch.counter.pause(async () => ({ hash: await hashOf(strategy), numericClass })),
        resources: () => watch.end(),
      },
    });
  }
}

function toTell(last: NonNullable<Place['last']>): Pick<Place, 'last' | 'isTold'> {
  return { last, isTold: false };
}

/** Whether the epoch has ended, or a rank of it has told that it failed and leaves. */
function isEpochOver(error: unknown): boolean {
  return (
    error instanceof EpochOverError ||
    error instanceof PeerFailedError ||
    (error instanceof Error && error.cause !== undefined && isEpochOver(error.cause))
  );
}
