// Holds one op against its float64 twin on any device: values, shapes, dtypes, gradients by central
// differences of the twin, and that the op leaves nothing behind outside any scope.

import { type DType, fromF32Array, isFloat, toF32Array } from '@shardweave/dtypes';
import type { Device } from '../device.js';
import type { RandomKey } from '../random.js';
import type { Tensor } from '../tensor.js';
import { ConformanceError } from './conformance-error.js';
import { type FloatDType, OP_TOLERANCES } from './op-tolerance.js';
import { SeededRandom } from './seeded-random.js';
import type { Tolerance } from './tolerance.js';
import type { TwinArray } from './twins/twin-array.js';

/** One check of the ops; runs in any test runner or page. */
export interface OpCase {
  readonly name: string;
  /** Rejects with ConformanceError on a mismatch; leaves the device's memory as it was. */
  run(device: Device): Promise<void>;
}

/** One input of an op under test: its shape, and what it is filled with. */
export interface OpInput {
  readonly shape: readonly number[];
  /** Default the case's. Integers get no gradient. */
  readonly dtype?: DType;
  /** Uniform in [low, high), or given values. Default [-1, 1). */
  readonly values?: readonly number[] | { readonly low: number; readonly high: number };
}

/**
 * An op beside its twin: what it is called with, what it should give in float64, and how far it may
 * be from that.
 */
export interface OpSpec {
  readonly dtype: FloatDType;
  readonly inputs: readonly OpInput[];
  readonly op: (inputs: readonly Tensor[]) => Tensor | readonly Tensor[];
  /** `key` is the one that the device's next random op gets. */
  readonly twin: (inputs: readonly TwinArray[], key: RandomKey) => TwinArray | readonly TwinArray[];
  /** Default `dtype`. */
  readonly outDType?: DType;
  /**
   * How many 16-bit roundings follow each other in the op: the tolerances of f16 and bf16 in
   * op-tolerance.ts are multiplied by it. Default 1.
   */
  readonly roundings?: number;
}

/** Elements of an input whose gradients are checked one by one; all at once along a direction. */
const MAX_SINGLE_GRADIENTS = 16;
/** The twin's error is about 1e-16 / STEP from rounding, STEP^2 from curvature: 1e-10 both. */
const STEP = 1e-5;

/**
 * Makes the check of one op: its values, shapes, dtypes and gradients against the float64 twin, and
 * that the device's live bytes are afterwards what they were before. The twin's results are
 * computed once, however many devices the case runs on.
 */
export function opCase(name: string, spec: OpSpec): OpCase {
  const known: KnownTwins = { outputs: new Map(), slopes: new Map() };
  return {
    name,
    async run(device) {
      const before = device.memory().live.total;
      const check = new OpCheck({ name, spec, known }, device);
      try {
        await check.run();
      } finally {
        check.dispose();
      }
      const after = device.memory().live.total;
      if (after !== before) {
        throw new ConformanceError(name, `memory: ${after - before} bytes were left behind`);
      }
    },
  };
}

/** What the twin gave on an earlier device, by the random key and the direction. */
interface KnownTwins {
  readonly outputs: Map<string, readonly TwinArray[]>;
  readonly slopes: Map<string, number>;
}

class OpCheck {
  readonly #name: string;
  readonly #spec: OpSpec;
  readonly #known: KnownTwins;
  readonly #device: Device;
  readonly #random: SeededRandom;
  readonly #inputs: { readonly tensor: Tensor; readonly twin: TwinArray }[] = [];
  readonly #outputs: Tensor[] = [];
  readonly #weights: Tensor[] = [];

  constructor(
    { name, spec, known }: { name: string; spec: OpSpec; known: KnownTwins },
    device: Device,
  ) {
    this.#name = name;
    this.#spec = spec;
    this.#known = known;
    this.#device = device;
    this.#random = new SeededRandom(name);
  }

  async run(): Promise<void> {
    const { op, twin, outDType, dtype } = this.#spec;
    for (const input of this.#spec.inputs) {
      this.#inputs.push(this.#make(input));
    }
    const key = this.#peekKey();
    this.#outputs.push(...listOf(op(this.#inputs.map(({ tensor }) => tensor))));
    const twins = this.#inputs.map((input) => input.twin);
    const evaluate = (at: readonly TwinArray[]) => listOf(twin(at, key));
    const keyName = JSON.stringify(key);
    const wanted = once(this.#known.outputs, keyName, () => evaluate(twins));
    const values = await Promise.all(this.#outputs.map((output) => output.toArray()));
    this.#outputs.forEach((output, i) => {
      const label = `output ${i}`;
      this.#compareKind(label, output, wanted[i]!.shape, outDType ?? dtype);
      this.#compare(label, values[i]!, wanted[i]!.data, this.#toleranceOf(output, 'value'));
    });
    if (this.#outputs.some((output) => output.requiresGrad)) {
      await this.#checkGradients(evaluate, keyName);
    }
  }

  dispose(): void {
    for (const tensor of [...this.#outputs, ...this.#weights]) {
      tensor.dispose();
    }
    for (const { tensor } of this.#inputs) {
      tensor.grad?.dispose();
      tensor.dispose();
    }
  }

  /** Gradients of the outputs' sum under random weights. */
  async #checkGradients(
    evaluate: (at: readonly TwinArray[]) => readonly TwinArray[],
    keyName: string,
  ) {
    const weights: Float64Array[] = [];
    for (const output of this.#outputs) {
      const made = this.#make({ shape: output.shape, dtype: output.dtype });
      this.#weights.push(made.tensor);
      weights.push(made.twin.data);
      await output.backward({ gradient: made.tensor });
    }
    const loss = (at: readonly TwinArray[]): number => {
      let total = 0;
      evaluate(at).forEach((output, i) => {
        output.data.forEach((value, j) => {
          total += value * weights[i]![j]!;
        });
      });
      return total;
    };
    const leaves = this.#inputs.filter(({ tensor }) => tensor.requiresGrad);
    const gradients = await Promise.all(leaves.map(({ tensor }) => tensor.grad?.toArray()));
    leaves.forEach(({ tensor, twin }, i) => {
      const label = `gradient ${i}`;
      const gradient = gradients[i];
      if (gradient === undefined) {
        this.#fail(`${label}: none arrived`);
      }
      this.#compareKind(label, tensor.grad!, tensor.shape, tensor.dtype);
      const slope = (along: number | 'signs', direction: Float64Array) =>
        once(this.#known.slopes, `${keyName} ${i} ${along}`, () => this.#slope(loss, i, direction));
      const tolerance = this.#toleranceOf(tensor, 'gradient');
      this.#compareGradient(label, gradient, { at: twin.data, slope, tolerance });
    });
  }

  /** Central difference of the loss as leaf number `leaf` moves along `direction`. */
  #slope(loss: (at: readonly TwinArray[]) => number, leaf: number, direction: Float64Array) {
    const target = this.#inputs.filter(({ tensor }) => tensor.requiresGrad)[leaf]!;
    const moved = (by: number) =>
      loss(
        this.#inputs.map((input) =>
          input === target
            ? { ...input.twin, data: input.twin.data.map((x, j) => x + by * direction[j]!) }
            : input.twin,
        ),
      );
    return (moved(STEP) - moved(-STEP)) / (2 * STEP);
  }

  #compareGradient(
    label: string,
    got: ArrayLike<number>,
    {
      at,
      slope,
      tolerance,
    }: {
      readonly at: Float64Array;
      readonly slope: (along: number | 'signs', direction: Float64Array) => number;
      readonly tolerance: Tolerance;
    },
  ): void {
    const { length } = got;
    if (length === 0) {
      return;
    }
    const singles = new Set([0, length - 1]);
    for (let i = 0; i < MAX_SINGLE_GRADIENTS; i++) {
      singles.add(length <= MAX_SINGLE_GRADIENTS ? i % length : this.#random.integer(0, length));
    }
    for (const i of singles) {
      const direction = new Float64Array(length);
      direction[i] = 1;
      const want = slope(i, direction);
      const limit = tolerance.absolute + tolerance.relative * Math.abs(want);
      if (!(Math.abs(got[i]! - want) <= limit)) {
        this.#fail(
          `${label}[${i}], where the input is ${at[i]}: expected ${want} (the twin's central difference, under random gradients of the outputs), got ${got[i]}`,
        );
      }
    }
    // All elements at once, along random signs; errors of single elements are independent.
    const signs = Float64Array.from({ length }, () => (this.#random.integer(0, 2) === 0 ? -1 : 1));
    let along = 0;
    let variance = 0;
    for (let i = 0; i < length; i++) {
      along += got[i]! * signs[i]!;
      variance += (tolerance.absolute + tolerance.relative * Math.abs(got[i]!)) ** 2;
    }
    const want = slope('signs', signs);
    if (!(Math.abs(along - want) <= 3 * Math.sqrt(variance))) {
      this.#fail(`${label} along random signs: expected ${want}, got ${along}`);
    }
  }

  #compareKind(label: string, got: Tensor, shape: readonly number[], dtype: DType): void {
    const [is, should] = [got, { shape, dtype }].map((x) => `${x.dtype} [${x.shape.join(', ')}]`);
    if (is !== should) {
      this.#fail(`${label}: expected ${should}, got ${is}`);
    }
  }

  #compare(
    label: string,
    got: ArrayLike<number>,
    want: Float64Array,
    { absolute, relative }: Tolerance,
  ): void {
    if (got.length !== want.length) {
      this.#fail(`${label}: expected ${want.length} elements, got ${got.length}`);
    }
    want.forEach((value, i) => {
      if (Object.is(value, got[i])) {
        return;
      }
      const isClose = Math.abs(got[i]! - value) <= absolute + relative * Math.abs(value);
      // Any number would be within an infinite distance of an infinity.
      if (!Number.isFinite(value) || !isClose) {
        this.#fail(`${label}[${i}]: expected ${value}, got ${got[i]}`);
      }
    });
  }

  #toleranceOf(tensor: Tensor, of: 'value' | 'gradient'): Tolerance {
    if (!isFloat(tensor.dtype)) {
      return { absolute: 0, relative: 0 };
    }
    const { absolute, relative } = OP_TOLERANCES[tensor.dtype as FloatDType][of];
    const factor = tensor.dtype === 'f32' ? 1 : (this.#spec.roundings ?? 1);
    return { absolute: absolute * factor, relative: relative * factor };
  }

  /** A tensor outside any scope, and the values that it really holds. */
  #make({ shape, dtype = this.#spec.dtype, values }: OpInput) {
    const size = shape.reduce((product, dim) => product * dim, 1);
    const range = values !== undefined && 'low' in values ? values : { low: -1, high: 1 };
    const given = Array.isArray(values) ? (values as readonly number[]) : undefined;
    const raw = Float32Array.from(
      { length: size },
      (_, i) => given?.[i] ?? this.#random.uniform(range.low, range.high),
    );
    const bytes = fromF32Array(raw, dtype);
    const tensor = this.#device.tensor(bytes, shape, { dtype, requiresGrad: isFloat(dtype) });
    return { tensor, twin: { shape, data: Float64Array.from(toF32Array(bytes, dtype)) } };
  }

  #peekKey(): RandomKey {
    const { random } = this.#device;
    const state = random.state();
    const key = random.nextMaskKey();
    random.restore(state);
    return key;
  }

  #fail(message: string): never {
    throw new ConformanceError(this.#name, message);
  }
}

function once<T>(known: Map<string, T>, name: string, make: () => T): T {
  let value = known.get(name);
  if (value === undefined) {
    value = make();
    known.set(name, value);
  }
  return value;
}

function listOf<T extends object>(value: T | readonly T[]): readonly T[] {
  return Array.isArray(value) ? (value as readonly T[]) : [value as T];
}
