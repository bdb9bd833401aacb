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
import { type Epoch, MembershipError } from '@shardweave/collectives/elastic';
import { dealtRows } from '../../data/dealt-rows.js';
import { openData } from '../../data/open-data.js';
import { UsageError } from '../../errors.js';
import { openOwnModel } from '../../own-model/open-own-model.js';
import type { EmitRankEvent } from '../events.js';
import { readAsked } from '../step/answers.js';
import { evaluate } from '../step/evaluation.js';
import { openAdapters } from '../strategies/adapters.js';
import { openReplica } from '../strategies/ddp.js';
import { hashOf } from '../strategies/model-saves.js';
import { sumOverRanks } from '../strategies/sum-over-ranks.js';
import { type Reached, trainLoop } from '../train-loop.js';
import { isSampled } from '../train-rank.js';
import { type AtWork, requireElastic, wrapForEpoch } from './at-work.js';
import type { ElasticEnd, ElasticRankOptions, Opened } from './elastic-options.js';
import { isEpochOver, lossOfEpoch, showEpochText, showLastText } from './epoch-end.js';
import { GroupSpeed } from './group-speed.js';
import { isBehind, type Note, noteOf, noteText, type Place, ranksInOrder } from './place.js';
import { differenceOf, proofOf } from './proof.js';
import { warmUp } from './warm-up.js';

/** The time between two looks for somebody of whom the leading process hears. */
const WAIT_MS = 100;

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

class ElasticRank {
  readonly #options: ElasticRankOptions;
  readonly #opened: Opened;
  readonly #speed = new GroupSpeed();
  #place: Place = { step: 0, updates: 0, isTold: true };
  /** The present epoch, or the last one until the next begins. */
  #work: AtWork | undefined;
  /** How the job ended, as far as this rank is concerned. */
  #ended: Reached | undefined;
  #hasTextFailed = false;
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
          if (error instanceof MembershipError && error.kind === 'ended') {
            await lead?.keep(this.#place);
          }
          throw error;
        }
      }
      if (this.#work?.step.undecided === undefined) {
        await this.#unwrap();
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
    this.#work?.strategy.unwrap();
    this.#opened.replica.optimizer.dispose();
    this.#opened.replica.dispose();
  }

  async #unwrap(): Promise<void> {
    if (this.#work !== undefined && this.#options.config.strategy === 'fsdp') {
      await this.#options.lead?.settle(); // a save reads what is freed now
    }
    this.#work?.strategy.unwrap();
    this.#work = undefined;
  }

  #note(): string {
    const { proof } = this.#opened;
    const undecided = this.#work?.step.undecided;
    const isAttached = this.#options.lead !== undefined;
    const { groupMs } = this.#speed;
    return noteText({ isAttached, proof, undecided, groupMs, place: this.#place });
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
    await this.#unwrap();
    const [options, opened] = [this.#options, this.#opened];
    const work = await wrapForEpoch(epoch, {
      ...{ options, opened, order },
      speed: this.#speed,
      place: source.place,
    });
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
    const loss = await lossOfEpoch(work, { device, train: opened.data.train }, reached);
    const ended: ElasticEnd = { rank, groups, strategy, watch, reached, loss };
    await onEnd?.(ended);
    if (rank === 0) {
      await lead?.end(ended);
    }
    this.#hasTextFailed = await showLastText(work, options, this.#hasTextFailed);
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
        `this rank can't join the job: ${differenceOf(this.#opened.proof, proof)}`,
      );
    }
  }

  #train(work: AtWork): Promise<Reached> {
    const { config, groups, strategy, step, watch } = work;
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
        if (isSampled(progress, config)) {
          await showEpochText(work, this.#options);
        }
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
