// Runs the same calls on a backend and on the reference, over equal bytes, and compares all of what
// they leave: results within a tolerance, inputs and everything outside the views bit for bit.

import { byteSize, type DType, fromF32Array, toF32Array } from '@shardweave/dtypes';
import type { Backend } from '../backend.js';
import { createReferenceBackend } from '../backends/reference/index.js';
import type { KernelCalls, KernelName } from '../kernel-calls/kernel-calls.js';
import type { View } from '../view.js';
import { ConformanceError } from './conformance-error.js';
import { SeededRandom } from './seeded-random.js';
import { type Tolerance, type ToleranceName, toleranceOf } from './tolerance.js';

/** Bytes before and after each view that nobody may write. */
const GUARD_BYTES = 16;
/** Fills outputs and guards: huge and finite in every float dtype, so reading it shows. */
const PATTERN = 0x7b;

/** One operand on both sides. */
export interface Pair {
  readonly subject: View;
  readonly reference: View;
}

export interface OperandOptions {
  /** Elements between the guard and the view; for 16-bit outputs even. Default 0. */
  readonly offset?: number;
  /** Kernels write it (in place or accumulating). Default false for inputs: it must not change. */
  readonly isWritten?: boolean;
  /** Default the case's. */
  readonly tolerance?: ToleranceName;
}

export interface FloatOptions extends OperandOptions {
  /** Range of the uniform values. Default -1 and 1. */
  readonly low?: number;
  readonly high?: number;
}

/** A kernel's arguments with a Pair for each View. */
export type PairedCall<C> = {
  [P in keyof C]: View extends C[P]
    ? Pair | Extract<C[P], undefined>
    : C[P] extends Readonly<Record<string, View>>
      ? Readonly<Record<string, Pair>>
      : C[P];
};

interface Operand {
  readonly pair: Pair;
  readonly initial: Uint8Array;
  readonly isWritten: boolean;
  readonly tolerance: ToleranceName;
  label: string;
}

export class Twin {
  readonly random: SeededRandom;
  readonly #name: string;
  readonly #tolerance: ToleranceName;
  readonly #subject: Backend;
  readonly #reference = createReferenceBackend();
  readonly #operands: Operand[] = [];

  constructor(backend: Backend, name: string, tolerance: ToleranceName) {
    this.#subject = backend;
    this.#name = name;
    this.#tolerance = tolerance;
    this.random = new SeededRandom(name);
  }

  /** An input of uniform random values. */
  floats(size: number, dtype: DType, options: FloatOptions = {}): Pair {
    const { low = -1, high = 1 } = options;
    const values = Array.from({ length: size }, () => this.random.uniform(low, high));
    return this.values(values, dtype, options);
  }

  /** An input of given values, rounded to a float dtype or exact in an integer one. */
  values(values: readonly number[], dtype: DType, options: OperandOptions = {}): Pair {
    if (dtype === 'i32') {
      return this.bits(Int32Array.from(values), dtype, options);
    }
    if (dtype === 'u32') {
      return this.bits(Uint32Array.from(values), dtype, options);
    }
    return this.bits(fromF32Array(Float32Array.from(values), dtype), dtype, options);
  }

  /** An input of random bits: NaN, infinities and subnormals among them. */
  anyBits(size: number, dtype: DType, options: OperandOptions = {}): Pair {
    const words = Uint32Array.from({ length: size }, () => this.random.bits());
    return this.bits(byteSize(dtype) === 2 ? Uint16Array.from(words) : words, dtype, options);
  }

  /** An input of given elements, whatever their array's type. */
  bits(data: ArrayBufferView, dtype: DType, options: OperandOptions = {}): Pair {
    const { offset = 0, isWritten = false, tolerance = this.#tolerance } = options;
    const byteOffset = GUARD_BYTES + offset * byteSize(dtype);
    const size = data.byteLength / byteSize(dtype);
    const end = Math.ceil((byteOffset + data.byteLength) / 4) * 4;
    const initial = new Uint8Array(end + GUARD_BYTES).fill(PATTERN);
    initial.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), byteOffset);
    const place = (backend: Backend): View => {
      const buffer = backend.alloc(initial.length, this.#name);
      backend.write(buffer, 0, initial);
      return { buffer, byteOffset, dtype, size };
    };
    const pair = { subject: place(this.#subject), reference: place(this.#reference) };
    this.#operands.push({ pair, initial, isWritten, tolerance, label: 'operand' });
    return pair;
  }

  /** An output, filled with a pattern that must not survive where the kernel writes. */
  output(size: number, dtype: DType, options: OperandOptions = {}): Pair {
    const pattern = new Uint8Array(size * byteSize(dtype)).fill(PATTERN);
    return this.bits(pattern, dtype, { ...options, isWritten: true });
  }

  /** `size` elements of `pair` from `start`, in the same buffer. */
  slice(pair: Pair, start: number, size: number): Pair {
    const cut = (view: View): View => ({
      ...view,
      byteOffset: view.byteOffset + start * byteSize(view.dtype),
      size,
    });
    return { subject: cut(pair.subject), reference: cut(pair.reference) };
  }

  /** Queues a kernel on both sides. */
  run<K extends KernelName>(kernel: K, call: PairedCall<KernelCalls[K]>): void {
    for (const [key, value] of Object.entries(call)) {
      this.#nameOperand(value, `${kernel}.${key}`);
      if (kernel === 'custom' && key === 'inputs') {
        for (const [name, input] of Object.entries(value as object)) {
          this.#nameOperand(input, `${kernel}.${name}`);
        }
      }
    }
    this.#subject.run(kernel, sideOf(call, 'subject') as KernelCalls[K]);
    this.#reference.run(kernel, sideOf(call, 'reference') as KernelCalls[K]);
  }

  /**
   * Reads everything back and compares.
   * @throws {ConformanceError} naming the first element that differs.
   */
  async compare(): Promise<void> {
    const results = await Promise.all(
      this.#operands.map(({ pair: { subject, reference }, initial }) =>
        Promise.all([
          this.#subject.read(subject.buffer, 0, initial.length),
          this.#reference.read(reference.buffer, 0, initial.length),
        ]),
      ),
    );
    this.#operands.forEach((operand, i) => {
      const [got, want] = results[i]!;
      this.#compareOutside(operand, got);
      this.#compareInside(operand, got, want);
    });
  }

  free(): void {
    for (const { pair } of this.#operands) {
      this.#subject.free(pair.subject.buffer);
    }
    this.#operands.length = 0;
  }

  #nameOperand(value: unknown, label: string): void {
    const buffer = (value as Partial<Pair> | undefined)?.subject?.buffer;
    const operand = this.#operands.find(({ pair }) => pair.subject.buffer === buffer);
    if (operand?.label === 'operand') {
      operand.label = label;
    }
  }

  /** Bytes outside the view, but for the half-word that a 16-bit output of odd size may clobber. */
  #compareOutside({ pair, initial, isWritten, label }: Operand, got: Uint8Array): void {
    const { byteOffset, size, dtype } = pair.subject;
    const end = byteOffset + size * byteSize(dtype);
    const clobbered = isWritten ? Math.ceil(end / 4) * 4 : end;
    for (let i = 0; i < initial.length; i++) {
      if (i >= byteOffset && i < clobbered) {
        continue;
      }
      if (got[i] !== initial[i]) {
        const where = i < byteOffset ? `${byteOffset - i} before` : `${i - end + 1} after`;
        this.#fail(`${label}: byte ${where} the view of ${size} ${dtype} was overwritten`);
      }
    }
  }

  #compareInside(operand: Operand, gotBytes: Uint8Array, wantBytes: Uint8Array): void {
    const { pair, isWritten, label } = operand;
    const { dtype } = pair.subject;
    const name = isWritten && dtype !== 'i32' && dtype !== 'u32' ? operand.tolerance : 'exact';
    const got = elementsOf(gotBytes, pair.subject);
    const want = elementsOf(wantBytes, pair.reference);
    const isClose = name === 'exact' ? Object.is : closeness(toleranceOf(name, dtype));
    let firstWrong = -1;
    let numWrong = 0;
    for (let i = 0; i < want.length; i++) {
      if (isClose(got[i]!, want[i]!)) {
        continue;
      }
      if (numWrong === 0) {
        firstWrong = i;
      }
      numWrong += 1;
    }
    if (numWrong === 0) {
      return;
    }
    const what = isWritten
      ? `expected ${want[firstWrong]}`
      : `an input changed from ${want[firstWrong]}`;
    this.#fail(
      `${label}[${firstWrong}]: ${what}, got ${got[firstWrong]} (${dtype} at byte ${pair.subject.byteOffset}, tolerance ${name}; ${numWrong} of ${want.length} differ)`,
    );
  }

  #fail(message: string): never {
    throw new ConformanceError(this.#name, message);
  }
}

function elementsOf(bytes: Uint8Array, { byteOffset, size, dtype }: View): ArrayLike<number> {
  const part = bytes.slice(byteOffset, byteOffset + size * byteSize(dtype));
  if (dtype === 'i32') {
    return new Int32Array(part.buffer);
  }
  if (dtype === 'u32') {
    return new Uint32Array(part.buffer);
  }
  return toF32Array(part, dtype);
}

function closeness({ relative, absolute }: Tolerance): (got: number, want: number) => boolean {
  return (got, want) =>
    Object.is(got, want) ||
    got === want ||
    // Without the test, any number would be within an infinite distance of an infinity.
    (Number.isFinite(want) && Math.abs(got - want) <= absolute + relative * Math.abs(want));
}

function sideOf(call: object, side: keyof Pair): unknown {
  const entries = Object.entries(call).map(([key, value]) => {
    if (typeof value !== 'object' || value === null) {
      return [key, value];
    }
    return [
      key,
      side in value ? (value as Pair)[side] : key === 'inputs' ? sideOf(value, side) : value,
    ];
  });
  return Object.fromEntries(entries);
}
