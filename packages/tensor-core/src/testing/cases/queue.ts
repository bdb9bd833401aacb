// Cases of a backend's queue: commands take effect in call order, bytes are copied when they are
// given, and memory is counted.

import type { Backend } from '../../backend.js';
import type { BackendBuffer, View } from '../../view.js';
import { type ConformanceCase, freeingCase } from '../kit/conformance-case.js';
import { ConformanceError } from '../kit/conformance-error.js';

const LABEL = 'conformance';

export function queueCases(): ConformanceCase[] {
  return [
    queueCase('writes between kernels', writesBetweenKernels),
    queueCase('writes between copies', writesBetweenCopies),
    queueCase('copies of parts', copiesOfParts),
    queueCase('reads see what was queued before them and nothing after', readsInOrder),
    queueCase('reads into a given array', readsInto),
    queueCase('reads and writes of parts', partialTransfers),
    queueCase('host arrays at any byte, shared or not', hostArrays),
    queueCase('written bytes are copied at once', copiesWrittenBytes),
    queueCase('a long chain of dependent kernels', longChain),
    queueCase('buffers freed while queued work uses them', freesWhileQueued),
    queueCase('megabytes there and back', largeTransfer),
    queueCase('usage, ids and dispatches', accounting),
    queueCase('an allocation beyond the limit', refusesTooLarge),
  ];
}

/** What the body of a queue case gets: a backend whose buffers are freed at the case's end. */
class Bench {
  readonly backend: Backend;
  readonly #name: string;
  readonly #buffers = new Set<BackendBuffer>();

  constructor(backend: Backend, name: string) {
    this.backend = backend;
    this.#name = name;
  }

  alloc(numWords: number): BackendBuffer {
    const buffer = this.backend.alloc(4 * numWords, LABEL);
    this.#buffers.add(buffer);
    return buffer;
  }

  /** Returns a new buffer of these f32 values. */
  upload(values: readonly number[]): BackendBuffer {
    const buffer = this.alloc(values.length);
    this.write(buffer, values);
    return buffer;
  }

  write(buffer: BackendBuffer, values: readonly number[], byteOffset = 0): void {
    this.backend.write(buffer, byteOffset, bytesOf(values));
  }

  /** Computes to = from * scale + shift over whole buffers. */
  affine(from: BackendBuffer, to: BackendBuffer, scale: number, shift: number): void {
    this.backend.run('affine', { x: viewOf(from), out: viewOf(to), scale, shift });
  }

  free(buffer: BackendBuffer): void {
    this.#buffers.delete(buffer);
    this.backend.free(buffer);
  }

  freeAll(): void {
    for (const buffer of this.#buffers) {
      this.free(buffer);
    }
  }

  /** Reads a whole buffer as f32. The read is queued at once. */
  async read(buffer: BackendBuffer): Promise<number[]> {
    return valuesOf(await this.backend.read(buffer, 0, buffer.byteLength));
  }

  async expect(what: string, buffer: BackendBuffer, values: readonly number[]): Promise<void> {
    this.equal(what, await this.read(buffer), values);
  }

  equal(what: string, got: unknown, want: unknown): void {
    const [gotText, wantText] = [JSON.stringify(got), JSON.stringify(want)];
    if (gotText === wantText) {
      return;
    }
    throw new ConformanceError(this.#name, `${what}: expected ${wantText}, got ${gotText}`);
  }
}

function queueCase(title: string, body: (bench: Bench) => Promise<void>): ConformanceCase {
  const name = `queue: ${title}`;
  return freeingCase(name, async (backend) => {
    const bench = new Bench(backend, name);
    try {
      await body(bench);
    } finally {
      bench.freeAll();
    }
  });
}

async function writesBetweenKernels(bench: Bench): Promise<void> {
  const x = bench.upload([1, 2]);
  const [first, second] = [bench.alloc(2), bench.alloc(2)];
  bench.affine(x, first, 10, 0);
  bench.write(x, [3, 4]);
  bench.affine(x, second, 10, 0);
  bench.write(x, [5, 6]);
  await bench.expect('before the write', first, [10, 20]);
  await bench.expect('after the write', second, [30, 40]);
  await bench.expect('the last write', x, [5, 6]);
}

async function writesBetweenCopies(bench: Bench): Promise<void> {
  const x = bench.upload([1, 2]);
  const [first, second] = [bench.alloc(2), bench.alloc(2)];
  bench.backend.copy(x, 0, first, 0, 8);
  bench.write(x, [3, 4]);
  bench.backend.copy(x, 0, second, 0, 8);
  bench.affine(x, x, 2, 0);
  bench.backend.copy(x, 0, first, 0, 4);
  await bench.expect('a kernel result over the first copy', first, [6, 2]);
  await bench.expect('after the write', second, [3, 4]);
}

async function copiesOfParts(bench: Bench): Promise<void> {
  const from = bench.upload([1, 2, 3, 4, 5]);
  const to = bench.upload([0, 0, 0, 0, 0]);
  bench.backend.copy(from, 4, to, 8, 8);
  await bench.expect('two words to another place', to, [0, 0, 2, 3, 0]);
}

async function readsInOrder(bench: Bench): Promise<void> {
  const x = bench.upload([1]);
  const reads = [bench.read(x)];
  for (let i = 2; i <= 8; i++) {
    if (i % 2 === 0) {
      bench.affine(x, x, 1, 1);
    } else {
      bench.write(x, [i]);
    }
    reads.push(bench.read(x));
  }
  bench.write(x, [99]);
  bench.backend.flush();
  bench.equal('values', (await Promise.all(reads)).flat(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

async function readsInto(bench: Bench): Promise<void> {
  const x = bench.upload([1, 2, 3, 4]);
  const host = new Uint8Array(16).fill(0xee);
  const into = host.subarray(4, 12);
  const result = await bench.backend.read(x, 4, 8, into);
  bench.equal('the given array is returned', result === into, true);
  bench.equal('values', valuesOf(into), [2, 3]);
  bench.equal('bytes around it', [host[3], host[12]], [0xee, 0xee]);
}

async function partialTransfers(bench: Bench): Promise<void> {
  const x = bench.upload([1, 2, 3, 4, 5]);
  bench.write(x, [20, 30], 4);
  await bench.expect('a write in the middle', x, [1, 20, 30, 4, 5]);
  bench.equal('a read of the middle', valuesOf(await bench.backend.read(x, 8, 8)), [30, 4]);
  bench.affine(x, x, 2, 0);
  bench.write(x, [7], 16);
  await bench.expect('a write after a kernel', x, [2, 40, 60, 8, 7]);
}

async function hostArrays(bench: Bench): Promise<void> {
  const x = bench.alloc(2);
  const unaligned = new Uint8Array(new ArrayBuffer(11), 3, 8);
  unaligned.set(bytesOf([1, 2]));
  bench.backend.write(x, 0, unaligned);
  await bench.expect('from an odd address', x, [1, 2]);
  const into = new Uint8Array(new ArrayBuffer(9), 1, 8);
  bench.equal('to an odd address', valuesOf(await bench.backend.read(x, 0, 8, into)), [1, 2]);
  if (typeof SharedArrayBuffer === 'undefined') {
    return; // a page that is not cross-origin isolated
  }
  const shared = new Uint8Array(new SharedArrayBuffer(8));
  shared.set(bytesOf([3, 4]));
  bench.backend.write(x, 0, shared);
  await bench.expect('from shared memory', x, [3, 4]);
  shared.fill(0);
  await bench.backend.read(x, 0, 8, shared);
  bench.equal('to shared memory', valuesOf(shared), [3, 4]);
}

async function copiesWrittenBytes(bench: Bench): Promise<void> {
  const x = bench.alloc(2);
  const bytes = bytesOf([1, 2]);
  bench.backend.write(x, 0, bytes);
  bytes.fill(0);
  await bench.expect('values', x, [1, 2]);
}

async function longChain(bench: Bench): Promise<void> {
  const numSteps = 300;
  const [x, y] = [bench.upload([0, 1000]), bench.alloc(2)];
  for (let i = 0; i < numSteps; i++) {
    bench.affine(x, y, 1, 1);
    bench.affine(y, x, 1, 1);
  }
  await bench.expect('values', x, [2 * numSteps, 1000 + 2 * numSteps]);
}

async function freesWhileQueued(bench: Bench): Promise<void> {
  const outs: BackendBuffer[] = [];
  for (let i = 0; i < 20; i++) {
    const x = bench.upload([i, -i]);
    const out = bench.alloc(2);
    bench.affine(x, out, 2, 1);
    bench.free(x); // the next upload may get its bytes
    outs.push(out);
  }
  const last = bench.upload([7, 8]);
  const read = bench.read(last);
  bench.free(last);
  const values = await Promise.all(outs.map((out) => bench.read(out)));
  const expected = outs.map((_, i) => [2 * i + 1, -2 * i + 1]);
  bench.equal('results', values, expected);
  bench.equal('a read of a freed buffer', await read, [7, 8]);
}

async function largeTransfer(bench: Bench): Promise<void> {
  const numWords = 2 ** 20 + 3;
  const x = bench.alloc(numWords);
  const words = Uint32Array.from({ length: numWords }, (_, i) => Math.imul(i, 0x9e3779b1));
  bench.backend.write(x, 0, new Uint8Array(words.buffer));
  const y = bench.alloc(numWords);
  bench.backend.copy(x, 0, y, 0, 4 * numWords);
  const bytes = await bench.backend.read(y, 0, 4 * numWords);
  const got = new Uint32Array(bytes.slice().buffer);
  const firstWrong = words.findIndex((word, i) => got[i] !== word);
  bench.equal('the first wrong word', firstWrong, -1);
}

async function accounting(bench: Bench): Promise<void> {
  const { backend } = bench;
  const before = backend.usage();
  const dispatches = backend.dispatches;
  const a = bench.alloc(1);
  const b = bench.alloc(64);
  bench.equal('different ids', a.id !== b.id, true);
  bench.equal('byte lengths', [a.byteLength, b.byteLength], [4, 256]);
  const held = backend.usage();
  bench.equal('buffers held', held.buffers - before.buffers, 2);
  bench.equal('bytes held', held.bytes - before.bytes, 260);
  backend.run('fill', { out: viewOf(b), value: 1 });
  bench.equal('dispatches counted', backend.dispatches > dispatches, true);
  await backend.sync();
  bench.free(a);
  const c = bench.alloc(1);
  bench.equal('an id used again', c.id === a.id || c.id === b.id, false);
  bench.free(b);
  bench.free(c);
  bench.equal('usage at the end', backend.usage(), before);
}

async function refusesTooLarge(bench: Bench): Promise<void> {
  const { maxBufferBytes } = bench.backend.info.limits;
  let caught: { readonly code?: unknown; readonly message?: string } = {};
  try {
    bench.alloc(maxBufferBytes / 4 + 1);
  } catch (error) {
    caught = error as typeof caught;
  }
  bench.equal('code of the error', caught.code, 'LIMIT');
  bench.equal('what to do', caught.message?.includes('shard over more ranks'), true);
}

function viewOf(buffer: BackendBuffer): View {
  return { buffer, byteOffset: 0, dtype: 'f32', size: buffer.byteLength / 4 };
}

function bytesOf(values: readonly number[]): Uint8Array {
  return new Uint8Array(Float32Array.from(values).buffer);
}

function valuesOf(bytes: Uint8Array): number[] {
  return Array.from(new Float32Array(Uint8Array.from(bytes).buffer));
}
