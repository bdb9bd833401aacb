// A random program of collectives: the same steps on every rank, over the world and over groups
// that are split from it. Ranks may run ahead of each other as far as they like. No rank can wait
// for ever, because all take the steps in one order.

import type { DType, ReduceOp } from '@shardweave/dtypes';
import type { WireDType } from '../../call-signature.js';
import type { SeededRandom } from './seeded-random.js';

/** The operations that a simulated program is made of, beside barriers, splits and messages. */
export type CollectiveName = 'allGather' | 'reduceScatter' | 'allReduce' | 'broadcast' | 'gather';

/** A collective of the ranks of one group. */
export interface CollectiveStep {
  readonly kind: 'collective';
  /**
   * The group: 0 is the world, and others come from splits in their order; a rank acts in its own
   * part.
   */
  readonly group: number;
  readonly operation: CollectiveName;
  readonly dtype: WireDType;
  /** The operation by which a reduction combines. */
  readonly op: ReduceOp;
  /** The elements that a rank contributes or owns; in allReduce, those of the whole buffer. */
  readonly count: number;
  /** Whether each rank has a count of its own instead. */
  readonly hasUnevenCounts: boolean;
  /** The group rank of the root. */
  readonly root: number;
  /** Whether input and output share memory, where the operation allows it. */
  readonly isInPlace: boolean;
  /** Makes the data of otherwise equal steps differ. */
  readonly variant: number;
}

/** A barrier of the ranks of one group. */
export interface BarrierStep {
  readonly kind: 'barrier';
  readonly group: number;
}

/** A split of a group, which makes a group for each color. */
export interface SplitStep {
  readonly kind: 'split';
  readonly group: number;
  /** The color of each world rank. */
  readonly colors: readonly number[];
  readonly keys: readonly number[];
}

/** A message from one rank to another, in the world group. */
export interface MessageStep {
  readonly kind: 'message';
  readonly from: number;
  readonly to: number;
  readonly channel: number;
  readonly count: number;
  readonly variant: number;
}

/** One step of a simulated program, which every rank that it concerns takes. */
export type Step = CollectiveStep | BarrierStep | SplitStep | MessageStep;

/** The steps that all ranks of a simulated job take, in this order. */
export interface Program {
  readonly worldSize: number;
  readonly steps: readonly Step[];
  /** The host of each world rank, where sums are to be combined within hosts first. */
  readonly hosts?: readonly number[];
}

const OPERATIONS = ['allGather', 'reduceScatter', 'allReduce', 'broadcast', 'gather'] as const;
const OPS: readonly ReduceOp[] = ['sum', 'mean', 'max', 'min'];
const DTYPES: readonly DType[] = ['f32', 'f16', 'bf16', 'i32', 'u32'];

/** The counts are few, so that references are computed once for many programs. */
const COUNTS = [0, 1, 2, 7, 63, 63, 255] as const;

/** Counts of 20 to 36 KiB, which all-reduce sends in several segments rather than whole. */
const LARGE_COUNTS: Readonly<Record<WireDType, number>> = {
  f32: 5003,
  i32: 5003,
  u32: 5003,
  f16: 9001,
  bf16: 9001,
  u8: 18_001,
};

const MAX_STEPS = 16;
const MAX_SPLITS = 3;
const NUM_VARIANTS = 3;

/** Draws a program of up to 16 steps. */
export function randomProgram(random: SeededRandom, worldSize: number): Program {
  const numSteps = 1 + random.below(MAX_STEPS);
  const steps: Step[] = [];
  let numGroups = 1;
  while (steps.length < numSteps) {
    const group = random.below(numGroups);
    const dice = random.next();
    if (dice < 0.1 && numGroups <= MAX_SPLITS) {
      steps.push(randomSplit(random, worldSize, group));
      numGroups++;
    } else if (dice < 0.2) {
      steps.push({ kind: 'barrier', group });
    } else if (dice < 0.35 && worldSize > 1) {
      steps.push(randomMessage(random, worldSize));
    } else {
      steps.push(randomCollective(random, worldSize, group));
    }
  }
  if (random.chance(0.7)) {
    return { worldSize, steps };
  }
  const hosts = Array.from({ length: worldSize }, () => random.below(3));
  return { worldSize, steps, hosts };
}

function randomSplit(random: SeededRandom, worldSize: number, group: number): SplitStep {
  const numColors = 1 + random.below(Math.min(3, worldSize));
  const draw = (limit: number) => Array.from({ length: worldSize }, () => random.below(limit));
  return { kind: 'split', group, colors: draw(numColors), keys: draw(4) };
}

function randomMessage(random: SeededRandom, worldSize: number): MessageStep {
  const from = random.below(worldSize);
  return {
    kind: 'message',
    from,
    to: (from + 1 + random.below(worldSize - 1)) % worldSize,
    channel: random.below(2),
    count: randomCount(random, 'u8'),
    variant: random.below(NUM_VARIANTS),
  };
}

function randomCollective(random: SeededRandom, worldSize: number, group: number): CollectiveStep {
  const operation = random.pick(OPERATIONS);
  const isReduction = operation === 'reduceScatter' || operation === 'allReduce';
  const dtype = isReduction ? random.pick(DTYPES) : random.pick([...DTYPES, 'u8'] as const);
  const isUneven = operation === 'allGather' || operation === 'reduceScatter';
  return {
    kind: 'collective',
    group,
    operation,
    dtype,
    op: random.pick(OPS),
    count: randomCount(random, dtype),
    hasUnevenCounts: isUneven && random.chance(0.3),
    // A group of a split may have a single rank, so its root is always rank 0.
    root: group === 0 ? random.below(worldSize) : 0,
    isInPlace: random.chance(0.3),
    variant: random.below(NUM_VARIANTS),
  };
}

function randomCount(random: SeededRandom, dtype: WireDType): number {
  return random.chance(0.05) ? LARGE_COUNTS[dtype] : random.pick(COUNTS);
}
