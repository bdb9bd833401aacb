// PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient matrix travels as two thin factors, which
// one step of power iteration per training step finds. What that loses is added to the next step's
// gradient.

import type { ProcessGroup } from '@shardweave/collectives';
import { fnv1a } from '@shardweave/dtypes';
import { cosPi64, log64 } from '@shardweave/dtypes/float64';
import {
  above,
  allOptional,
  FLAG,
  type OptionRules,
  SEED,
  whole,
} from '@shardweave/tensor-core/options';
import type { BucketLayout } from '../bucket-layout.js';
import { checkOptions } from '../check-options.js';
import { allReduceHook } from './all-reduce-hook.js';
import type { BucketMember, HookBucket, StatefulHook } from './communication-hook.js';
import { HookMemory } from './hook-memory.js';
import {
  expand,
  type MatrixShape,
  multiply,
  multiplyTransposed,
  orthonormalize,
} from './low-rank.js';

/**
 * How much PowerSGD (Vogels, Karimireddy, Jaggi 2019) compresses gradients, when it starts, and
 * what it remembers between steps. All but `errorFeedback` must be the same on all ranks.
 */
export interface PowerSgdOptions {
  /** The number of columns of the factors. Default 1. */
  readonly matrixApproximationRank?: number;
  /** The number of reductions of a bucket that are exact before compression starts. Default 0. */
  readonly startStep?: number;
  /**
   * The least ratio of compression: a gradient that would shrink by less travels exactly, as
   * vectors always do. Default 2.
   */
  readonly minCompressionRate?: number;
  /** Adds what a step loses to the next one. Default true. */
  readonly errorFeedback?: boolean;
  /** Starts each step's iteration where the last one ended. Default true. */
  readonly warmStart?: boolean;
  /** The seed of the first factors, the same on all ranks. Default 0. */
  readonly seed?: number;
}

const RULES: OptionRules<PowerSgdOptions> = allOptional({
  matrixApproximationRank: whole(1),
  startStep: whole(0),
  minCompressionRate: above(0),
  errorFeedback: FLAG,
  warmStart: FLAG,
  seed: SEED,
});

/**
 * Compresses f32 buckets; 16-bit buckets go as they are. It is serial, with two or three
 * all-reduces for each bucket.
 */
export function powerSgdHook(options: PowerSgdOptions = {}): StatefulHook {
  checkOptions('powerSgdHook', options, RULES);
  const memory = new HookMemory('powerSgd', ['error', 'factors', 'steps']);
  let states = new WeakMap<BucketLayout, BucketState>();
  const { startStep = 0, matrixApproximationRank = 1, minCompressionRate = 2 } = options;
  const { warmStart = true, seed = 0 } = options;
  return {
    name: 'powerSgd',
    isSerial: true,
    settings: `startStep ${startStep}, matrixApproximationRank ${matrixApproximationRank}, minCompressionRate ${minCompressionRate}, warmStart ${warmStart}, seed ${seed}`,
    reduce: async (bucket) => {
      if (bucket.dtype !== 'f32') {
        return allReduceHook.reduce(bucket);
      }
      memory.requireOwner(bucket);
      let state = states.get(bucket.layout);
      if (state === undefined) {
        state = new BucketState(bucket, options, memory);
        states.set(bucket.layout, state);
      }
      if (state.countStep() <= startStep) {
        return allReduceHook.reduce(bucket);
      }
      return state.reduce(bucket);
    },
    // The factors stay: they are the same on all ranks, and have no magnitude that matters.
    forget: (paths) => memory.zero(paths, 'error'),
    stateDict: () => memory.stateDict(),
    loadStateDict: (state) => {
      memory.load(state);
      states = new WeakMap();
    },
  };
}

/** One gradient as a matrix: its first dimension by the product of all others. */
interface CompressedMember extends MatrixShape {
  readonly path: string;
  /** The offset of its first element in the bucket. */
  readonly offset: number;
  /** [rows, rank], a part of the bucket's `p`. */
  readonly p: Float32Array;
  /** [cols, rank], a part of the bucket's `q`. */
  readonly q: Float32Array;
}

/** What a bucket remembers between steps, and its scratch memory. */
class BucketState {
  /** How many reductions each compressed member has seen, the present one included. */
  readonly #steps: Float32Array;
  readonly #compressed: readonly CompressedMember[];
  /** The members that travel exactly. */
  readonly #exact: readonly BucketMember[];
  readonly #exactValues: Float32Array;
  /** The factors of all members one after another, so that each kind takes one all-reduce. */
  readonly #p: Float32Array;
  readonly #q: Float32Array;
  /** The error of each element of the bucket. */
  readonly #error: Float32Array | undefined;
  readonly #seed: number;
  readonly #isWarm: boolean;
  /** Tells factors that were loaded, which ranks compare once. */
  #loaded = '';

  constructor(bucket: HookBucket, options: PowerSgdOptions, memory: HookMemory) {
    const { matrixApproximationRank = 1, minCompressionRate = 2 } = options;
    const shapes = bucket.members.map((member) => ({
      member,
      shape: matrixShape(member, matrixApproximationRank, minCompressionRate),
    }));
    const chosen = shapes.flatMap(({ member, shape }) =>
      shape === undefined ? [] : [{ ...shape, path: member.path, offset: member.offset }],
    );
    this.#exact = shapes.flatMap(({ member, shape }) => (shape === undefined ? [member] : []));
    this.#exactValues = new Float32Array(this.#exact.reduce((sum, { size }) => sum + size, 0));
    const sizeOf = (side: 'rows' | 'cols') =>
      chosen.reduce((sum, matrix) => sum + matrix[side] * matrix.rank, 0);
    this.#p = new Float32Array(sizeOf('rows'));
    this.#q = new Float32Array(sizeOf('cols'));
    let [pStart, qStart] = [0, 0];
    this.#compressed = chosen.map((matrix) => {
      const [pEnd, qEnd] = [pStart + matrix.rows * matrix.rank, qStart + matrix.cols * matrix.rank];
      const p = this.#p.subarray(pStart, pEnd);
      const q = this.#q.subarray(qStart, qEnd);
      [pStart, qStart] = [pEnd, qEnd];
      return { ...matrix, p, q };
    });
    const hasFeedback = options.errorFeedback ?? true;
    this.#error = hasFeedback ? new Float32Array(bucket.layout.elementCount) : undefined;
    this.#steps = new Float32Array(chosen.length);
    this.#seed = options.seed ?? 0;
    this.#isWarm = options.warmStart ?? true;
    this.#compressed.forEach(({ path, q, offset, rows, cols }, i) => {
      q.fill(Number.NaN); // is drawn where nothing is remembered
      if (memory.place(path, 'factors', q) === 'loaded') {
        this.#loaded += ` with loaded factors ${fnv1a(bytesOf(q))}`;
      }
      memory.place(path, 'steps', this.#steps.subarray(i, i + 1));
      const error = this.#error?.subarray(offset, offset + rows * cols);
      if (error !== undefined) {
        memory.place(path, 'error', error);
      }
    });
  }

  /** Counts a reduction. Returns how many the newest of its compressed members has seen. */
  countStep(): number {
    for (let i = 0; i < this.#steps.length; i++) {
      this.#steps[i]! += 1;
    }
    return Math.min(...this.#steps);
  }

  async reduce({ bytes, group, tag, identity }: HookBucket): Promise<void> {
    const values = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    const matrix = ({ offset, rows, cols }: CompressedMember) =>
      values.subarray(offset, offset + rows * cols);
    const call = { tag, identity };
    await this.#reduceExact(values, group, call);
    if (this.#compressed.length === 0) {
      return;
    }

    const error = this.#error;
    if (error !== undefined) {
      for (const member of this.#compressed) {
        addError(matrix(member), member, error);
      }
    }
    this.#compressed.forEach((member, i) => {
      if (!this.#isWarm || !leadsSomewhere(member.q)) {
        draw(member.q, `${this.#seed} ${member.path} ${this.#steps[i]}`);
      }
    });
    for (const member of this.#compressed) {
      orthonormalize(member.q, member.cols, member.rank);
      multiply(matrix(member), member.q, member.p, member);
    }
    await sumOverRanks(group, this.#p, named(call, `p${this.#loaded}`));
    this.#loaded = '';
    for (const member of this.#compressed) {
      orthonormalize(member.p, member.rows, member.rank);
      multiplyTransposed(matrix(member), member.p, member.q, member);
    }
    await sumOverRanks(group, this.#q, named(call, 'q'));
    for (const member of this.#compressed) {
      if (error !== undefined) {
        error.set(matrix(member), member.offset);
      }
      expand(member.p, member.q, matrix(member), member);
      if (error !== undefined) {
        keepError(matrix(member), member, { error, worldSize: group.worldSize });
      }
    }
  }

  async #reduceExact(values: Float32Array, group: ProcessGroup, call: CallNames): Promise<void> {
    if (this.#exact.length === 0) {
      return;
    }
    let at = 0;
    for (const { offset, size } of this.#exact) {
      this.#exactValues.set(values.subarray(offset, offset + size), at);
      at += size;
    }
    await sumOverRanks(group, this.#exactValues, named(call, 'exact'));
    at = 0;
    for (const { offset, size } of this.#exact) {
      values.set(this.#exactValues.subarray(at, at + size), offset);
      at += size;
    }
  }
}

/**
 * The matrix of a gradient; undefined for a vector, and for a matrix that its factors would not
 * make smaller by the rate.
 */
function matrixShape(
  { shape, size }: BucketMember,
  maxRank: number,
  minCompressionRate: number,
): MatrixShape | undefined {
  const rows = shape[0] ?? 1;
  const cols = size / rows;
  const rank = Math.min(maxRank, rows, cols);
  if (shape.length < 2 || (rows + cols) * rank * minCompressionRate >= size) {
    return undefined;
  }
  return { rows, cols, rank };
}

function addError(values: Float32Array, { offset }: CompressedMember, error: Float32Array): void {
  for (let i = 0; i < values.length; i++) {
    values[i]! += error[offset + i]!;
  }
}

/**
 * Keeps what compression lost: `error` holds what this rank put in, and `sum` what came out for all
 * ranks. An infinity or NaN is dropped, because it would come back in every later step.
 */
function keepError(
  sum: Float32Array,
  { offset }: CompressedMember,
  { error, worldSize }: { readonly error: Float32Array; readonly worldSize: number },
): void {
  for (let i = 0; i < sum.length; i++) {
    const lost = error[offset + i]! - sum[i]! / worldSize;
    error[offset + i] = Number.isFinite(lost) ? lost : 0;
  }
}

type CallNames = Pick<HookBucket, 'tag' | 'identity'>;

function named({ tag, identity }: CallNames, part: string): CallNames {
  return { tag: `${tag} ${part}`, identity: `${identity} ${part}` };
}

function sumOverRanks(group: ProcessGroup, values: Float32Array, call: CallNames): Promise<void> {
  const bytes = bytesOf(values);
  return group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', wire: 'exact', ...call });
}

/**
 * Whether an iteration can start from these factors: not after an overflow, and not after a
 * gradient of zeros. The factors are the same on all ranks, so either all of them draw new ones or
 * none does.
 */
function leadsSomewhere(q: Float32Array): boolean {
  return q.every(Number.isFinite) && q.some((value) => value !== 0);
}

/**
 * Fills `q` with normally distributed numbers (Box-Muller) from a multiplicative congruential
 * generator, which are the same for the same key.
 */
function draw(q: Float32Array, key: string): void {
  let state = (fnv1a(key) % 0x7ffffffe) + 1;
  const uniform = () => {
    state = (state * 48271) % 0x7fffffff; // Park and Miller; stays below 2^53
    return state / 0x7fffffff;
  };
  for (let i = 0; i < q.length; i++) {
    q[i] = Math.sqrt(-2 * log64(uniform())) * cosPi64(2 * uniform());
  }
}

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}
