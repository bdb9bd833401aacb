// What a rank of an elastic job has for an epoch: the replica in a wrapper on the epoch's group,
// its part of each step's groups of rows, and what measures them.

import type { Epoch } from '@shardweave/collectives/elastic';
import { dealtRows } from '../../data/dealt-rows.js';
import type { Parts } from '../../data/row-order.js';
import { UsageError } from '../../errors.js';
import type { PreparedRun } from '../../run-config.js';
import { openObjective } from '../objectives/open-objective.js';
import { RankWatch } from '../rank-watch.js';
import { TrainingStep } from '../step/training-step.js';
import { joinAdapters } from '../strategies/adapters.js';
import { joinReplicas, type ReplicaStrategy } from '../strategies/ddp.js';
import { openRankGroups } from '../strategies/open-strategy.js';
import type { RankGroups, TaskStrategy } from '../strategies/strategy.js';
import type { ElasticRankOptions, Opened } from './elastic-options.js';
import { dealBySpeed, type GroupSpeed } from './group-speed.js';
import { isBehind, noteOf, type Place } from './place.js';

/** What a rank has for an epoch. */
export interface AtWork {
  readonly config: PreparedRun & { readonly gradientGroups: number } & Pick<Parts, 'groupCounts'>;
  readonly groups: RankGroups;
  readonly strategy: TaskStrategy & ReplicaStrategy;
  readonly step: TrainingStep;
  readonly watch: RankWatch;
}

/** @throws {UsageError} for a run whose bits depend on its ranks, or that needs all of them */
export function requireElastic(
  config: PreparedRun,
): PreparedRun & { readonly gradientGroups: number } {
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

interface WrapOptions {
  readonly options: ElasticRankOptions;
  readonly opened: Opened;
  readonly speed: GroupSpeed;
  /** The ranks of the epoch in the order in which they are at work. */
  readonly order: readonly number[];
  /** Where the rank is whose state is the newest. */
  readonly place: Place;
}

/** Wraps the replica for an epoch, and sends the state to those who are behind. Collective. */
export async function wrapForEpoch(
  { group, source, members, step: at }: Epoch,
  { options, opened, speed, order, place }: WrapOptions,
): Promise<AtWork> {
  const { device, emit, member, wrapUp, lead, watched } = options;
  const { replica, data, own } = opened;
  const gather = await group.split(0, order.indexOf(group.rank));
  const root = order.indexOf(source);
  if (watched !== undefined) {
    gather.onTrace = watched.comm.onCall;
  }
  const groups = await openRankGroups(gather);
  const { rank, worldSize: ranks } = gather;
  const whole = requireElastic(options.config);
  const isSharded = whole.strategy === 'fsdp';
  const groupMs = order.map((member) => noteOf(members[member]!).groupMs);
  // Shards are gathered in each call, so that ranks with fewer calls would wait for the others.
  const groupCounts = isSharded ? undefined : dealBySpeed(whole.gradientGroups, groupMs);
  // Groups are dealt in one way to all who have what is trained whole.
  const config = { ...whole, ranks, groupCounts, strategy: 'ddp' } as const;
  const join = isSharded ? joinAdapters : joinReplicas;
  const wrapped = await join(
    replica,
    { config, groups, own, groupCounts },
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
    onRows: (rows) => void (rows > 0 && speed.note(wrapped.computeMs())),
    stopWish: () => {
      // Where the leading process wraps up all its ranks hear of it, each in a moment of its own.
      const isOver = wrapUp.aborted && lead?.endsJob === true;
      return isOver ? 'end' : member.isChangeDue || wrapUp.aborted ? 'stop' : 'go on';
    },
  });
  step.loadScaler(place.scaler);
  return { config, groups, strategy, step, watch };
}
