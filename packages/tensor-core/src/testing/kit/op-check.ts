// Compares an op with its float64 twin on any device: values, shapes, dtypes, and gradients, which
// must equal central differences of the twin. It also checks that the op leaves no memory behind.

import { type DType, fromF32Array, isFloat, toF32Array } from '@shardweave/dtypes';
import type { Device } from '../../device.js';
import type { RandomKey } from '../../random.js';
import type { Tensor } from '../../tensor.js';
import type { TwinArray } from '../twins/twin-array.js';
import { ConformanceError } from './conformance-error.js';
import { type FloatDType, OP_TOLERANCES } from './op-tolerance.js';
import { SeededRandom } from './seeded-random.js';
import type { Tolerance } from './tolerance.js';

/** A named check of an op. It runs in any test runner, or in a page. */
export interface OpCase {
  readonly name: string;
  /** Runs the check. It rejects with ConformanceError on a mismatch and frees what it allocates. */
  run(device: Device): Promise<void>;
}

/** An input of an op under test: its shape, and what it is filled with. */
export interface OpInput {
  readonly shape: readonly number[];
  /** The input's dtype. The default is the case's. Integers get no gradient. */
  readonly dtype?: DType;
  /** Given values, or the range [low, high) of uniform ones. The default is [-1, 1). */
  readonly values?: readonly number[] | { readonly low: number; readonly high: number };
}

/**
 * An op and its twin: what the op is called with, what it should give, and how far off it may be.
 */
export interface OpSpec {
  readonly dtype: FloatDType;
  readonly inputs: readonly OpInput[];
  readonly op: (inputs: readonly Tensor[]) => Tensor | readonly Tensor[];
  /** The same computation in float64. `key` is the key that the device's next random op gets. */
  readonly twin: (inputs: readonly TwinArray[], key: RandomKey) => TwinArray | readonly TwinArray[];
  /** The dtype of the outputs. The default is `dtype`. */
  readonly outDType?: DType;
  /**
   * How many 16-bit roundings follow each other in the op. The tolerances of f16 and bf16 in
   * op-tolerance.ts are multiplied by it. The default is 1.
   */
  readonly roundings?: number;
}

/**
 * The elements of an input whose gradients are checked one by one. All of them are checked
 * together, along one direction.
 */
const MAX_SINGLE_GRADIENTS = 16;
/**
 * The step of central differences. Rounding makes an error of about 1e-16 / STEP and curvature one
 * of STEP^2, which are 1e-11 and 1e-10.
 */
const STEP = 1e-5;

/**
 * Makes the check of one op: it compares values, shapes, dtypes and gradients with the float64
 * twin, and the device's live bytes afterwards with those before. The twin's results are computed
 * once, on however many devices the case runs.
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

/** What the twin gave for an earlier device, by the random key and the direction. */
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

  /** Compares the gradients of the outputs' sum under random weights. */
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

  /** Returns the central difference of the loss as leaf number `leaf` moves along `direction`. */
  #slope(loss: (at: readonly TwinArray[]) => number, leaf: number, direction: Float64Array) {
    const target = this.#inputs.filter(({ tensor }) => tensor.requiresGrad)[leaf]!;
    const moved = (offset: number) =>
      loss(
        this.#inputs.map((input) =>
          input === target
            ? { ...input.twin, data: input.twin.data.map((x, j) => x + offset * direction[j]!) }
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
    // All elements are checked together along random signs. The limit assumes that their errors are
    // independent of each other.
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
      // Without this test any number would be within the infinite tolerance of an infinity.
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

  /** Makes a tensor outside any scope, and its twin of the values that it holds after rounding. */
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
