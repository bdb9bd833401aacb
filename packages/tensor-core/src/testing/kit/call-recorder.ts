// Runs calls on the reference device and repeats them on other backends over equal bytes. Then it
// compares all bytes that they leave: results within a tolerance, and inputs and everything outside
// the views bit for bit.

import { byteSize, type DType, fromF32Array, toF32Array } from '@shardweave/dtypes';
import type { Backend } from '../../backend.js';
import { createReferenceBackend } from '../../backends/reference/index.js';
import {
  type KernelCalls,
  type KernelName,
  NESTED_VIEWS,
} from '../../kernel-calls/kernel-calls.js';
import type { BackendBuffer, View } from '../../view.js';
import { ConformanceError } from './conformance-error.js';
import { SeededRandom } from './seeded-random.js';
import { type Tolerance, type ToleranceName, toleranceOf } from './tolerance.js';

/** The bytes before and after each view, which no kernel may write. */
const GUARD_BYTES = 16;
/**
 * The byte that fills outputs and guards. It makes numbers that are finite and large in every float
 * dtype, so that a kernel that reads them gives a wrong result.
 */
const PATTERN = 0x7b;

export interface OperandOptions {
  /** The elements between the guard and the view, even for 16-bit outputs. The default is 0. */
  readonly offset?: number;
  /** Whether kernels write the operand. An input, the default, must not change. */
  readonly isWritten?: boolean;
  /** The tolerance of the result. The default is the case's. */
  readonly tolerance?: ToleranceName;
}

export interface FloatOptions extends OperandOptions {
  /** The range [low, high) of the uniform values. The default is [-1, 1). */
  readonly low?: number;
  readonly high?: number;
}

/** A buffer with guards around its view. */
interface Operand {
  readonly view: View;
  readonly initial: Uint8Array;
  readonly isWritten: boolean;
  readonly tolerance: ToleranceName;
  label: string;
}

/** A step of a case: an operand that was made, or a kernel that was called. */
type Step =
  | { readonly operand: Operand }
  | { readonly kernel: KernelName; readonly call: KernelCalls[KernelName] };

/**
 * What the body of a conformance case calls: `floats`, `values` and `output` make operands, and
 * `run` calls a kernel on the reference at once. The steps are kept in order, as a Recording that
 * is then repeated on the backends under test.
 */
export class CallRecorder {
  readonly random: SeededRandom;
  readonly #name: string;
  readonly #tolerance: ToleranceName;
  readonly #isComputing: boolean;
  readonly #reference = createReferenceBackend();
  readonly #operands = new Map<BackendBuffer, Operand>();
  readonly #steps: Step[] = [];

  /**
   * `isComputing` tells whether inputs are random and the reference computes what is expected. That
   * takes most of the time, and is needless where nothing will be compared. The default is true.
   */
  constructor(
    name: string,
    tolerance: ToleranceName,
    { isComputing = true }: { readonly isComputing?: boolean } = {},
  ) {
    this.#name = name;
    this.#tolerance = tolerance;
    this.#isComputing = isComputing;
    this.random = new SeededRandom(name);
  }

  /** Makes an input of uniform random values. */
  floats(size: number, dtype: DType, options: FloatOptions = {}): View {
    const { low = -1, high = 1 } = options;
    const values = this.#isComputing
      ? Array.from({ length: size }, () => this.random.uniform(low, high))
      : new Array<number>(size).fill(low);
    return this.values(values, dtype, options);
  }

  /** Makes an input of given values, which are rounded to a float dtype. */
  values(values: readonly number[], dtype: DType, options: OperandOptions = {}): View {
    if (dtype === 'i32') {
      return this.bits(Int32Array.from(values), dtype, options);
    }
    if (dtype === 'u32') {
      return this.bits(Uint32Array.from(values), dtype, options);
    }
    return this.bits(fromF32Array(Float32Array.from(values), dtype), dtype, options);
  }

  /** Makes an input of random bits, with NaN, infinities and subnormals among them. */
  anyBits(size: number, dtype: DType, options: OperandOptions = {}): View {
    const words = Uint32Array.from({ length: size }, () => this.random.bits());
    return this.bits(byteSize(dtype) === 2 ? Uint16Array.from(words) : words, dtype, options);
  }

  /** Makes an input of the bytes of an array, whatever its type. */
  bits(data: ArrayBufferView, dtype: DType, options: OperandOptions = {}): View {
    const { offset = 0, isWritten = false, tolerance = this.#tolerance } = options;
    const byteOffset = GUARD_BYTES + offset * byteSize(dtype);
    const size = data.byteLength / byteSize(dtype);
    const end = Math.ceil((byteOffset + data.byteLength) / 4) * 4;
    const initial = new Uint8Array(end + GUARD_BYTES).fill(PATTERN);
    initial.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), byteOffset);
    const buffer = this.#reference.alloc(initial.length, this.#name);
    this.#reference.write(buffer, 0, initial);
    const view = { buffer, byteOffset, dtype, size };
    const operand = { view, initial, isWritten, tolerance, label: 'operand' };
    this.#operands.set(buffer, operand);
    this.#steps.push({ operand });
    return view;
  }

  /** Makes an output, filled with a pattern that must not survive where the kernel writes. */
  output(size: number, dtype: DType, options: OperandOptions = {}): View {
    const pattern = new Uint8Array(size * byteSize(dtype)).fill(PATTERN);
    return this.bits(pattern, dtype, { ...options, isWritten: true });
  }

  /** Returns a view of `size` elements of `view` from `start` on, in the same buffer. */
  slice(view: View, start: number, size: number): View {
    return { ...view, byteOffset: view.byteOffset + start * byteSize(view.dtype), size };
  }

  /** Runs a kernel on the reference. */
  run<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
    // A case may run a kernel in all of its kinds, and `unary tanh.out` says which of them failed.
    const title = 'kind' in call ? `${kernel} ${call.kind}` : kernel;
    for (const [key, value] of Object.entries(call)) {
      this.#nameOperand(value, `${title}.${key}`);
      if (NESTED_VIEWS.has(key)) {
        for (const [name, input] of Object.entries((value ?? {}) as object)) {
          this.#nameOperand(input, `${title}.${name}`);
        }
      }
    }
    this.#steps.push({ kernel, call });
    if (this.#isComputing) {
      this.#reference.run(kernel, call);
    }
  }

  /** Returns the steps so far and what they left on the reference. */
  recording(): Recording {
    const operands = [...this.#operands.values()];
    const expected = Promise.all(
      operands.map(({ view, initial }) => this.#reference.read(view.buffer, 0, initial.length)),
    );
    return new Recording(this.#name, { steps: this.#steps, operands, expected });
  }

  #nameOperand(value: unknown, label: string): void {
    const buffer = (value as Partial<View> | undefined)?.buffer;
    const operand = buffer === undefined ? undefined : this.#operands.get(buffer);
    if (operand?.label === 'operand') {
      operand.label = label;
    }
  }
}

/** The steps of a case, which any number of backends repeat. */
export class Recording {
  readonly #name: string;
  readonly #steps: readonly Step[];
  readonly #operands: readonly Operand[];
  /** The bytes that each operand's whole buffer must hold at the end. */
  readonly #expected: Promise<readonly Uint8Array[]>;

  constructor(
    name: string,
    made: {
      readonly steps: readonly Step[];
      readonly operands: readonly Operand[];
      readonly expected: Promise<readonly Uint8Array[]>;
    },
  ) {
    this.#name = name;
    this.#steps = made.steps;
    this.#operands = made.operands;
    this.#expected = made.expected;
  }

  /** The bytes of the largest operand's buffer. */
  get largestBytes(): number {
    return Math.max(...this.#operands.map(({ initial }) => initial.length));
  }

  /**
   * Repeats the steps on `backend`, in their order, and compares all of what they leave.
   * @throws {ConformanceError} naming the first element that differs.
   */
  async repeatOn(backend: Backend): Promise<void> {
    const buffers = new Map<BackendBuffer, BackendBuffer>();
    try {
      this.#repeat(backend, buffers);
      const got = await Promise.all(
        this.#operands.map(({ view, initial }) =>
          backend.read(buffers.get(view.buffer)!, 0, initial.length),
        ),
      );
      const expected = await this.#expected;
      this.#operands.forEach((operand, i) => {
        this.#compareOutside(operand, got[i]!);
        this.#compareInside(operand, got[i]!, expected[i]!);
      });
    } finally {
      freeAll(backend, buffers);
    }
  }

  /** Repeats the steps on `backend`, in their order, and reads nothing. */
  callOn(backend: Backend): void {
    const buffers = new Map<BackendBuffer, BackendBuffer>();
    try {
      this.#repeat(backend, buffers);
    } finally {
      freeAll(backend, buffers);
    }
  }

  #repeat(backend: Backend, buffers: Map<BackendBuffer, BackendBuffer>): void {
    for (const step of this.#steps) {
      if ('operand' in step) {
        const { initial, view } = step.operand;
        const buffer = backend.alloc(initial.length, this.#name);
        buffers.set(view.buffer, buffer);
        backend.write(buffer, 0, initial);
      } else {
        backend.run(step.kernel, placed(step.call, buffers) as typeof step.call);
      }
    }
  }

  /**
   * Compares the bytes outside the view. The half-word after a 16-bit output of odd size may have
   * been overwritten.
   */
  #compareOutside({ view, initial, isWritten, label }: Operand, got: Uint8Array): void {
    const { byteOffset, size, dtype } = view;
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
    const { view, isWritten, label } = operand;
    const { dtype } = view;
    const name = isWritten && dtype !== 'i32' && dtype !== 'u32' ? operand.tolerance : 'exact';
    const got = elementsOf(gotBytes, view);
    const want = elementsOf(wantBytes, view);
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
      `${label}[${firstWrong}]: ${what}, got ${got[firstWrong]} (${dtype} at byte ${view.byteOffset}, tolerance ${name}; ${numWrong} of ${want.length} differ)`,
    );
  }

  #fail(message: string): never {
    throw new ConformanceError(this.#name, message);
  }
}

function freeAll(backend: Backend, buffers: ReadonlyMap<BackendBuffer, BackendBuffer>): void {
  for (const buffer of buffers.values()) {
    backend.free(buffer);
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
    // Without this test any number would be within the infinite tolerance of an infinity.
    (Number.isFinite(want) && Math.abs(got - want) <= absolute + relative * Math.abs(want));
}

/** Returns a call whose views lie in the buffers that stand for their own. */
function placed(call: object, buffers: ReadonlyMap<BackendBuffer, BackendBuffer>): unknown {
  const entries = Object.entries(call).map(([key, value]) => {
    if (typeof value !== 'object' || value === null) {
      return [key, value];
    }
    if ('buffer' in value) {
      const view = value as View;
      return [key, { ...view, buffer: buffers.get(view.buffer)! }];
    }
    return [key, NESTED_VIEWS.has(key) ? placed(value, buffers) : value];
  });
  return Object.fromEntries(entries);
}
