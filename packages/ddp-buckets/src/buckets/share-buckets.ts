// What ranks tell one another at the end of a backward: which parameters any of them used, and the
// order in which gradients came on one of them, which all ranks' buckets then follow.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  decodeStructure,
  encodeStructure,
  learnStructure,
  type PlanContext,
} from './bucket-plan.js';
import type { SyncCycle } from './sync-cycle.js';

/** Runs a collective in the wrapper's turn; undefined on a single rank. */
export type InTurn = (<T>(body: (group: ProcessGroup) => Promise<T>) => Promise<T>) | undefined;

export interface LearnOptions {
  readonly context: PlanContext;
  /** A byte for each active parameter, as usedByAny gives it: 1 where some rank uses it. */
  readonly used: Uint8Array | undefined;
  /** The rank whose order counts. */
  readonly leader: number;
}

/**
 * Resolves with a byte for each active parameter, 0 where no rank has a gradient; undefined where
 * all parameters have one.
 */
export async function usedByAny(
  cycle: SyncCycle,
  { wrapper: { options } }: PlanContext,
  inTurn: InTurn,
): Promise<Uint8Array | undefined> {
  if (!options.isFindingUnused && !(options.isStaticGraph && !cycle.plan.isLearned)) {
    return undefined;
  }
  const used = cycle.usedHere();
  if (used.length > 0) {
    await inTurn?.((group) =>
      group.allReduce(used, used, {
        dtype: 'u8',
        op: 'max',
        tag: 'ddp used parameters',
        identity: `${cycle.identity} used parameters`,
      }),
    );
  }
  return used;
}

/** Whether the buckets are to follow the order of this cycle. */
export function isToLearn({ plan }: SyncCycle, { wrapper: { options } }: PlanContext): boolean {
  const { isDelayed, isStaticGraph } = options;
  return !plan.isLearned && plan.active.length > 0 && (!isDelayed || isStaticGraph);
}

/** Resolves with the buckets in the order of arrival on rank `leader`. */
export async function learnBuckets(
  cycle: SyncCycle,
  { context, used, leader }: LearnOptions,
  inTurn: InTurn,
): Promise<number[][]> {
  const { isDelayed, isStaticGraph } = context.wrapper.options;
  const { active } = cycle.plan;
  const arrived = isDelayed ? active.map((_, i) => i) : cycle.arrived;
  const isUsed = (index: number) => !isStaticGraph || used?.[index] !== 0;
  const own = learnStructure(active, arrived, context, isUsed);
  if (inTurn === undefined) {
    return own;
  }
  const words = encodeStructure(own, active.length);
  const bytes = new Uint8Array(words.buffer);
  await inTurn((group) =>
    group.broadcast(bytes, {
      root: leader,
      dtype: 'u32',
      tag: 'ddp buckets',
      identity: `${cycle.identity} buckets`,
    }),
  );
  return decodeStructure(words, active.length);
}
