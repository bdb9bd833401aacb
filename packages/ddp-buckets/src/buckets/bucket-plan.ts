// The buckets of the present set of trainable parameters. The first plan is a guess (parameters in
// reverse order, as backward mostly goes). It is replaced by one that follows the order in which
// gradients came on one rank.

import type { DType } from '@shardweave/dtypes';
import type { Tensor } from '@shardweave/tensor-core';
import { assignBuckets, type BucketRule, bucketLayout } from '../bucket-layout.js';
import { Bucket } from './bucket.js';
import type { ActiveParameter, WrapperContext } from './wrapped-parameters.js';

/** The place in a bucket where a parameter's gradient lies. */
export interface Place {
  readonly bucket: Bucket;
  /** The parameter's number among the active ones. */
  readonly index: number;
}

export interface PlanContext {
  readonly wrapper: WrapperContext;
  /** The number of elements that every rank's device can bind at once. */
  readonly maxElements: number;
}

export class BucketPlan {
  readonly active: readonly ActiveParameter[];
  /** The buckets, in the order of their reductions. */
  readonly buckets: readonly Bucket[];
  /** Whether the order is that of a backward rather than the guess. */
  readonly isLearned: boolean;
  readonly #places = new Map<Tensor, Place>();
  /**
   * The dtypes that the active parameters had when buckets were laid out; a module may be cast
   * later.
   */
  readonly #dtypes: readonly DType[];

  constructor(
    active: readonly ActiveParameter[],
    structure: readonly (readonly number[])[],
    context: PlanContext,
    options: { readonly isLearned: boolean },
  ) {
    this.active = active;
    this.isLearned = options.isLearned;
    this.#dtypes = active.map(({ tensor }) => tensor.dtype);
    const sizes = parametersOf(active);
    this.buckets = structure.map((members, index) => {
      const layout = bucketLayout(arranged(members, active), sizes);
      return new Bucket(index, layout, active, context.wrapper);
    });
    for (const bucket of this.buckets) {
      for (const index of bucket.layout.members) {
        this.#places.set(active[index]!.tensor, { bucket, index });
      }
    }
  }

  /**
   * The place of a leaf's gradient; undefined where the leaf is not trained, or is not used in a
   * static graph.
   */
  placeOf(leaf: Tensor): Place | undefined {
    return this.#places.get(leaf);
  }

  /** Whether this plan was made for the parameters `active`, in the dtypes that they have. */
  isFor(active: readonly ActiveParameter[]): boolean {
    return (
      active.length === this.active.length &&
      active.every(
        ({ tensor }, i) => tensor === this.active[i]!.tensor && tensor.dtype === this.#dtypes[i],
      )
    );
  }
}

/**
 * Guesses the buckets before the order of gradients is known. With delayAllreduce the guess stays.
 */
export function guessStructure(
  active: readonly ActiveParameter[],
  context: PlanContext,
): number[][] {
  const order = active.map((_, i) => i);
  if (!context.wrapper.options.isDelayed) {
    order.reverse();
  }
  return assignBuckets(order, parametersOf(active), ruleOf(active, context));
}

/**
 * Makes buckets in the order of arrival. Parameters that did not arrive follow in the guessed order
 * where `isUsed` says so, else they are left out.
 */
export function learnStructure(
  active: readonly ActiveParameter[],
  arrived: readonly number[],
  context: PlanContext,
  isUsed: (index: number) => boolean,
): number[][] {
  const known = new Set(arrived);
  const others = active.map((_, i) => i).filter((i) => !known.has(i));
  const order = [...arrived, ...others.reverse()].filter(isUsed);
  return assignBuckets(order, parametersOf(active), ruleOf(active, context));
}

/**
 * Writes a structure as numbers, so that its length depends only on the number of parameters: [[2,
 * 1], [0]] of 3 parameters is 2, 2, 1, 0, 2, 1, 0.
 */
export function encodeStructure(
  structure: readonly (readonly number[])[],
  numParameters: number,
): Uint32Array {
  const words = new Uint32Array(1 + 2 * numParameters);
  words[0] = structure.length;
  words.set(
    structure.map(({ length }) => length),
    1,
  );
  words.set(structure.flat(), 1 + numParameters);
  return words;
}

export function decodeStructure(words: Uint32Array, numParameters: number): number[][] {
  let at = 1 + numParameters;
  return [...words.subarray(1, 1 + words[0]!)].map((length) => {
    at += length;
    return [...words.subarray(at - length, at)];
  });
}

/**
 * The members of a bucket as they lie in it. Packed ones follow one another as in their flat, so
 * that one kernel takes a run of them there.
 */
function arranged(members: readonly number[], active: readonly ActiveParameter[]) {
  const arePacked = members.some((index) => active[index]!.tensor.piece !== undefined);
  return arePacked ? [...members].sort((a, b) => a - b) : members;
}

function parametersOf(active: readonly ActiveParameter[]) {
  return active.map(({ tensor }) => ({ size: tensor.size, dtype: tensor.dtype }));
}

function ruleOf(active: readonly ActiveParameter[], context: PlanContext): BucketRule {
  const { sizes, triggers } = context.wrapper.options;
  const indices = active.flatMap(({ tensor }, i) => (triggers.has(tensor) ? [i] : []));
  return { sizes, triggers: new Set(indices), maxElements: context.maxElements };
}
