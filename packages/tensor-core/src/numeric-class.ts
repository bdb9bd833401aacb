// Devices of one numeric class give equal bits for equal inputs. See docs/numerics.md.

import { fnv1a } from '@shardweave/dtypes';
import type { Backend, BackendInfo, Scratch } from './backend.js';
import { philox } from './backends/reference/dropout.js';
import type { KernelCalls, KernelName } from './kernel-calls/kernel-calls.js';
import type { BackendBuffer, View } from './view.js';

/**
 * The versions of the kernels of each kind of device, by which saves and ranks are compared. A
 * change of the bits that a kernel gives, such as the order of a sum or the place of a rounding,
 * must raise its kind's version. A test compares a hash of the cpu device's kernels; for WGSL it is
 * up to the author.
 */
export const KERNEL_VERSIONS: Readonly<Record<BackendInfo['kind'], number>> = {
  webgpu: 9,
  cpu: 6,
  reference: 3,
};

/** A number whose square lies in the middle of two f32, of which rounding takes the lower one. */
export const FUSE_FACTOR = 1 + 2 ** -12;
/**
 * The value of FUSE_FACTOR^2 - 1 where the product is rounded before the subtraction. Where both
 * are fused it is 2^-24 more.
 */
export const PLAIN_RESULT = 2 ** -11;

/** The results of a function: enough for a difference in the last bit of some to show. */
const COUNT = 256;
/** The terms of the row sum, and of the product that devices for which it is long cut along k. */
const LONG_ROW = 1000;
const LONG_K = 1040;
/** The values of an input, which the largest operand needs. */
const INPUT_SIZE = 4 * LONG_K;
/** The bytes at whose multiples inputs and outputs lie, where every device can bind them. */
const PLACE_BYTES = 256;
/** The magnitudes below the normal numbers, which devices may take for 0, as bits. */
const SUBNORMALS = [1, 0x1000, 0x400000, 0x7fffff];
/** The smallest normal f32, whose products with numbers below 1 are subnormal. */
const TINY = 2 ** -126;

interface Asked {
  readonly compiledFor: string;
  readonly line: Promise<string>;
}

/** What was found, by device. Chosen tiles change `compiledFor`, and then it is asked anew. */
const asked = new WeakMap<Backend, Asked>();

/**
 * Returns the numeric class of a device: its kind, the version of its kernels, what they are
 * compiled for, and a hash of what they give. Two drivers may have one name, as all of a vendor
 * have in a browser, so that kernels are run to tell them apart: those whose bits WGSL leaves to
 * the driver, sums, and products as their loads, tiles and parts of k differ. The first call waits
 * for the device. It takes some 50 KB of it meanwhile, which no Device's ledger counts, since those
 * that share a backend share the answer.
 */
export function numericClassOf(backend: Backend): Promise<string> {
  const { kind, compiledFor } = backend.info;
  const known = asked.get(backend);
  if (known?.compiledFor === compiledFor) {
    return known.line;
  }
  const adapter = compiledFor === '' ? '' : ` for ${compiledFor}`;
  const line = hashOf(backend).then(
    (hash) => `${kind} kernels ${KERNEL_VERSIONS[kind]}${adapter}, bits ${hash}`,
  );
  asked.set(backend, { compiledFor, line });
  return line;
}

/** Returns the hash of all results, 16 digits, from one batch of commands that is read once. */
async function hashOf(backend: Backend): Promise<string> {
  inputs ??= makeInputs();
  const given: BackendBuffer[] = [];
  const take = (byteLength: number) => {
    const buffer = backend.alloc(byteLength, 'numeric class');
    given.push(buffer);
    return buffer;
  };
  try {
    const from = take(inputs.byteLength);
    backend.write(from, 0, inputs);
    const input = (i: number): View => viewOf(from, i * 4 * INPUT_SIZE, INPUT_SIZE);
    const probes = [...eachProbe(input(0), input(1))];
    const placeOf = ({ size }: Probe) => Math.ceil((4 * size) / PLACE_BYTES) * PLACE_BYTES;
    const byteLength = probes.reduce((sum, probe) => sum + placeOf(probe), 0);
    const to = take(byteLength);
    backend.write(to, 0, new Uint8Array(byteLength)); // the bytes between results are read as well
    let at = 0;
    for (const one of probes) {
      one.run(backend, viewOf(to, at, one.size), { take, give: () => {} });
      at += placeOf(one);
    }
    const bytes = await backend.read(to, 0, byteLength);
    const low = fnv1a(bytes);
    return [fnv1a(bytes, low), low].map((half) => half.toString(16).padStart(8, '0')).join('');
  } finally {
    for (const buffer of given) {
      backend.free(buffer);
    }
  }
}

/** A kernel with `size` results, all of which count. */
interface Probe {
  readonly size: number;
  run(backend: Backend, out: View, scratch: Scratch): void;
}

/**
 * Returns the kernels that are run. They are few and small, because a driver that computes on the
 * CPU compiles each for some 50 ms: a softmax of 16 rows has one lane a row there, and all products
 * are smaller than what its large tile is worth.
 * @param x numbers of both signs
 * @param positive numbers above 0
 */
function* eachProbe(x: View, positive: View): Iterable<Probe> {
  for (const kind of ['exp', 'tanh', 'log', 'reciprocal', 'sqrt'] as const) {
    const from = first(kind === 'exp' || kind === 'tanh' ? x : positive, COUNT);
    yield probe('unary', COUNT, (out) => ({ kind, x: from, out }));
  }
  for (const [scale, shift] of [
    [FUSE_FACTOR, -1],
    [TINY, 0],
  ] as const) {
    yield probe('affine', COUNT, (out) => ({ x: first(x, COUNT), out, scale, shift }));
  }
  const softmax = { rows: 16, cols: 60, scale: 0.5, isLog: false, causalRows: 0 };
  const row = { kind: 'sum', outer: 1, dim: LONG_ROW, inner: 1 } as const;
  yield probe('softmax', 16 * 60, (out) => ({ x: first(x, 16 * 60), out, ...softmax }));
  yield probe('reduce', 1, (out) => ({ x: first(x, LONG_ROW), out, ...row }));
  // The first and the last have rows of whole vectors, the other one has not.
  for (const [m, n, k] of [
    [20, 12, 16],
    [17, 5, 9],
    [4, 4, LONG_K],
  ] as const) {
    yield probe('matmul', m * n, (out) => product({ a: x, b: positive, out }, { m, n, k }));
  }
}

function probe<K extends KernelName>(
  kernel: K,
  size: number,
  call: (out: View) => KernelCalls[K],
): Probe {
  return { size, run: (backend, out, scratch) => backend.run(kernel, call(out), scratch) };
}

/** A dense product of the first elements of `a` and `b`. */
function product(
  { a, b, out }: { readonly a: View; readonly b: View; readonly out: View },
  { m, n, k }: { readonly m: number; readonly n: number; readonly k: number },
): KernelCalls['matmul'] {
  return {
    a: first(a, m * k),
    b: first(b, k * n),
    out,
    bias: undefined,
    ...{ m, n, k, transposeA: false, transposeB: false },
    ...{ aRow: k, bRow: n, outRow: n },
    batch: [1, 1],
    aBatch: [0, 0],
    bBatch: [0, 0],
    outBatch: [0, 0],
    alpha: 1,
    accumulate: false,
  };
}

function viewOf(buffer: BackendBuffer, byteOffset: number, size: number): View {
  return { buffer, byteOffset, dtype: 'f32', size };
}

function first(view: View, size: number): View {
  return { ...view, size };
}

/** The inputs, which are made once. */
let inputs: Uint8Array | undefined;

/**
 * Makes the bytes of both inputs, of COUNT words by Philox over and over, as Philox takes the host
 * longer than all else: numbers in [-16, 16), and positive ones from 2^-20 to 2^20. Each begins
 * with FUSE_FACTOR and subnormal numbers.
 */
function makeInputs(): Uint8Array {
  const blocks = Array.from({ length: COUNT / 4 }, (_, i) => philox([i, 0, 0, 0], [1, 2]));
  const words = blocks.flat();
  const values = new Float32Array(2 * INPUT_SIZE);
  const bits = new Uint32Array(values.buffer);
  for (let i = 0; i < INPUT_SIZE; i++) {
    const word = words[i % COUNT]!;
    values[i] = ((word >>> 8) - 2 ** 23) * 2 ** -19;
    bits[INPUT_SIZE + i] = ((107 + ((word >>> 23) % 40)) << 23) | (word & 0x7fffff);
  }
  for (const start of [0, INPUT_SIZE]) {
    values[start] = FUSE_FACTOR;
    bits.set(SUBNORMALS, start + 1);
  }
  return new Uint8Array(values.buffer);
}
