// The CPU device behaves like a queue: nothing blocks the host, nothing is lost when the ring, the
// staging bytes or the memory run out, and the process ends when it should.

import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import {
  type Backend,
  type BackendBuffer,
  DisposedError,
  LimitError,
  OutOfMemoryError,
  type View,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { build } from 'esbuild';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { CpuBackend } from '../src/backends/cpu/cpu-backend.js';
import { makeView, randomFloats, readFloats } from './support/cpu-device.js';

const THREADS = process.env.SHARDWEAVE_LONG === '1' ? [0, 1, 2] : [0, 2];
/** The most written bytes that may wait on the host when whenWritable resolves. */
const FEW_BYTES = 16 * 1024 * 1024;
const SOURCE = fileURLToPath(new URL('../src/backends/cpu/', import.meta.url));

let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shardweave-cpu-'));
  await build({
    entryPoints: { cpu: `${SOURCE}index.ts`, worker: `${SOURCE}worker.ts` },
    outdir: folder,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    format: 'esm',
    platform: 'neutral',
    conditions: ['@shardweave/source'],
    // Some compilers rename functions in this way, and the source text of the worker must survive
    // it.
    keepNames: true,
  });
});

afterAll(async () => {
  await rm(folder, { recursive: true });
});

/** Runs a module that imports the bundled device, and returns what it printed. */
async function runScript(name: string, source: string): Promise<string> {
  const path = join(folder, `${name}.mjs`);
  await writeFile(path, `import { createCpuBackend } from './cpu.mjs';\n${source}`);
  const { stdout } = await promisify(execFile)(process.execPath, [path], { timeout: 20_000 });
  return stdout;
}

/** Queues work for much longer than the host takes for a test's next calls. */
function keepBusy(backend: Backend): void {
  const x = makeView(backend, 'f32', 2 ** 20);
  for (let pass = 0; pass < 30; pass++) {
    backend.run('affine', { x, out: x, scale: 1, shift: 1 });
  }
  backend.flush();
}

describe.each(THREADS)('a queue with threads: %i', (threads) => {
  it('reads a buffer that it has no room to copy, with the bytes that it had at the call', async () => {
    const backend = await createCpuBackend({ threads, memoryBytes: 40 * 2 ** 20 });
    const x = makeView(backend, 'f32', 6 * 2 ** 20);
    backend.run('fill', { out: x, value: 1 });
    const read = backend.read(x.buffer, 0, x.buffer.byteLength);
    backend.run('fill', { out: x, value: 2 });
    const [before, after] = [new Float32Array((await read).buffer), await readFloats(backend, x)];
    expect(before.every((value) => value === 1)).toBe(true);
    expect(after.every((value) => value === 2)).toBe(true);
    await backend.dispose();
  });

  it('keeps few written bytes waiting where the host asks before each write, and loses none', async () => {
    const backend = (await createCpuBackend({ threads })) as CpuBackend;
    const x = makeView(backend, 'f32', 2 * 1024 * 1024);
    const bytes = new Uint8Array(x.buffer.byteLength);
    let most = 0;
    // This is work for much longer than the host takes to write.
    for (let pass = 0; pass < 150; pass++) {
      backend.run('affine', { x, out: x, scale: 1, shift: 1 });
    }
    for (let i = 1; i <= 12; i++) {
      await backend.whenWritable?.();
      backend.write(x.buffer, 0, bytes.fill(i));
      most = Math.max(most, backend.waitingBytes);
    }
    expect(most).toBeLessThanOrEqual(FEW_BYTES + bytes.byteLength);
    const found = await backend.read(x.buffer, 0, bytes.byteLength);
    expect(Buffer.compare(found, bytes)).toBe(0);
    expect(backend.waitingBytes).toBe(0);
    await backend.dispose();
    await expect(backend.whenWritable()).rejects.toThrow(DisposedError);
  });

  it('writes at once into a buffer that no queued command uses', async () => {
    const backend = await createCpuBackend({ threads });
    const y = makeView(backend, 'f32', 4);
    keepBusy(backend);
    backend.write(y.buffer, 0, new Uint8Array(16).fill(7));
    const found = new Uint8Array(16);
    backend.readNow!(y.buffer, 0, found);
    expect(found).toEqual(new Uint8Array(16).fill(7));
    await backend.dispose();
  });

  it('writes behind the commands that use a buffer, or used the memory that it has now', async () => {
    const backend = await createCpuBackend({ threads });
    const size = 2 ** 10;
    const [a, b, c] = [1, 2, 3].map((value) =>
      makeView(backend, 'f32', size, new Float32Array(size).fill(value)),
    ) as [View, View, View];
    const outs = [a, b].map(() => makeView(backend, 'f32', size));
    keepBusy(backend);
    backend.run('affine', { x: a, out: outs[0]!, scale: 1, shift: 0 });
    backend.copy(b.buffer, 0, outs[1]!.buffer, 0, 4 * size);
    const read = backend.read(c.buffer, 0, 4 * size);
    const nines = new Float32Array(size).fill(9);
    const write = (view: View) => backend.write(view.buffer, 0, new Uint8Array(nines.buffer));
    backend.free(a.buffer);
    const reused = makeView(backend, 'f32', size);
    for (const view of [reused, b, c]) {
      write(view);
    }
    const found = [...(await Promise.all(outs.map((out) => readFloats(backend, out))))];
    found.push(new Float32Array((await read).buffer));
    expect(found.map((values) => [...new Set(values)])).toEqual([[1], [2], [3]]);
    for (const view of [reused, b, c]) {
      expect(await readFloats(backend, view)).toEqual(nines);
    }
    await backend.dispose();
  });

  it('runs ten thousand commands queued without waiting, in order', async () => {
    const backend = await createCpuBackend({ threads });
    const x = makeView(backend, 'f32', 3, Float32Array.of(0, 1, 2));
    for (let i = 0; i < 10_000; i++) {
      // The kernels compute x + 1 and x * 1.0001 in turn, so another order gives another result.
      backend.run('affine', { x, out: x, scale: i % 2 === 0 ? 1 : 1.0001, shift: (i + 1) % 2 });
    }
    const expected = Float32Array.of(0, 1, 2);
    for (let i = 0; i < 10_000; i++) {
      for (let j = 0; j < 3; j++) {
        const product = Math.fround(expected[j]! * Math.fround(i % 2 === 0 ? 1 : 1.0001));
        expected[j] = product + ((i + 1) % 2);
      }
    }
    expect(await readFloats(backend, x)).toEqual(expected);
    await backend.dispose();
  });

  it('takes more writes than staging holds while it is busy, in order', async () => {
    const backend = await createCpuBackend({ threads, memoryBytes: 256 * 2 ** 20 });
    const size = 2 ** 20;
    const x = makeView(backend, 'f32', size);
    const sum = makeView(backend, 'f32', size, new Float32Array(size));
    const values = new Float32Array(size);
    for (let i = 0; i < 24; i++) {
      values.fill(2 ** i);
      values[i] = 0;
      backend.write(x.buffer, 0, new Uint8Array(values.buffer));
      backend.run('binary', {
        kind: 'add',
        a: sum,
        b: x,
        out: sum,
        shape: [size],
        aStrides: [1],
        bStrides: [1],
      });
    }
    const result = await readFloats(backend, sum);
    const all = 2 ** 24 - 1;
    // toEqual would take seconds for a million elements.
    const wrong = result.findIndex((value, i) => value !== (i < 24 ? all - 2 ** i : all));
    expect(wrong).toBe(-1);
    await backend.dispose();
  });

  it('keeps buffers as the memory grows under it', async () => {
    const backend = await createCpuBackend({ threads });
    const views = [];
    for (let i = 0; i < 40; i++) {
      const view = makeView(backend, 'f32', 2 ** 18);
      backend.run('fill', { out: view, value: i });
      views.push(view);
    }
    for (const [i, view] of views.entries()) {
      const values = await readFloats(backend, view);
      expect(values.every((value) => value === i)).toBe(true);
    }
    expect(backend.usage()).toEqual({ bytes: 40 * 2 ** 20, buffers: 40 });
    await backend.dispose();
  });

  it('reuses freed memory, whatever the order of frees', async () => {
    const backend = await createCpuBackend({ threads, memoryBytes: 32 * 2 ** 20 });
    for (let round = 0; round < 20; round++) {
      const buffers = [1, 5, 2, 8, 3].map((mib) => backend.alloc(mib * 2 ** 20, 'part'));
      for (const i of [3, 0, 4, 1, 2]) {
        backend.free(buffers[(i + round) % 5]!);
      }
      // Only merged neighbors make a free run of this size.
      backend.free(backend.alloc(19 * 2 ** 20, 'whole'));
    }
    await backend.sync();
    expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    await backend.dispose();
  });

  it('hands no byte out twice where a block grows over a free run at the end', async () => {
    const backend = await createCpuBackend({ threads });
    backend.free(backend.alloc(2 ** 16, 'small'));
    const size = 2 ** 15;
    const large = makeView(backend, 'f32', size, randomFloats(size, 5));
    const small = makeView(backend, 'f32', 2 ** 14);
    backend.run('fill', { out: small, value: 7 });
    expect(await readFloats(backend, large)).toEqual(randomFloats(size, 5));
    await backend.dispose();
  });

  it('fails only the allocation that finds no room, and goes on', async () => {
    const backend = await createCpuBackend({ threads, memoryBytes: 32 * 2 ** 20 });
    const x = makeView(backend, 'f32', 4, new Float32Array(4));
    expect(() => backend.alloc(33 * 2 ** 20, 'too large')).toThrow(LimitError);
    const before = backend.usage();
    const attempt = () => backend.alloc(30 * 2 ** 20, 'large');
    expect(attempt).toThrow(OutOfMemoryError);
    expect(attempt).toThrow(
      expect.objectContaining({
        requestedBytes: 30 * 2 ** 20,
        liveBytes: 16,
        limitBytes: 32 * 2 ** 20,
      }),
    );
    expect(backend.usage()).toEqual(before);
    backend.run('fill', { out: x, value: 2 });
    expect(await readFloats(backend, x)).toEqual(new Float32Array(4).fill(2));
    await backend.dispose();
    expect(attempt).toThrow(DisposedError);
  });

  it('fails only the kernel whose scratch finds no room, and leaves no scratch behind', async () => {
    const backend = await createCpuBackend({ threads, memoryBytes: 32 * 2 ** 20 });
    const [rows, count] = [2 ** 17, 2 ** 20];
    const table = makeView(backend, 'f16', rows);
    const ids = makeView(backend, 'u32', count, new Uint32Array(count));
    const dy = makeView(backend, 'f16', count);
    const fillers: BackendBuffer[] = [];
    for (;;) {
      try {
        fillers.push(backend.alloc(2 ** 20, 'filler'));
      } catch {
        break;
      }
    }
    // The first list now has room in this MiB. The second one, of 4 MiB, has not.
    backend.free(fillers.pop()!);
    const call = { ids, dy, dTable: table, rows, cols: 1, count };
    expect(() => backend.run('embeddingBackward', call)).toThrow(OutOfMemoryError);
    fillers.push(backend.alloc(2 ** 20, 'again'));
    // When memory is freed on request, the command runs.
    const stop = backend.onMemoryPressure!(() => {
      for (const filler of fillers.splice(0)) {
        backend.free(filler);
      }
    });
    backend.run('cast', { x: ids, out: dy });
    backend.run('embeddingBackward', call);
    stop();
    const bytes = await backend.read(table.buffer, 0, 4);
    expect([...new Uint16Array(bytes.buffer)]).toEqual([0, 0]);
    await backend.dispose();
  });

  it('rejects pending and later reads when disposed, twice over', async () => {
    const backend = await createCpuBackend({ threads });
    const x = makeView(backend, 'f32', 2 ** 22);
    for (let i = 0; i < 20; i++) {
      backend.run('fill', { out: x, value: i });
    }
    const pending = expect(backend.read(x.buffer, 0, 16)).rejects.toThrow(DisposedError);
    await Promise.all([backend.dispose(), backend.dispose()]);
    await pending;
    await expect(backend.sync()).rejects.toThrow(DisposedError);
    expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
  });

  it('reports every kernel to a trace, in order and on this clock', async () => {
    const backend = await createCpuBackend({ threads });
    const x = makeView(backend, 'f32', 2 ** 18, randomFloats(2 ** 18, 4));
    const events: { name: string; startMs: number; endMs: number }[] = [];
    const before = performance.now();
    backend.trace((event) => events.push(event));
    for (let i = 0; i < 2500; i++) {
      backend.run('fill', { out: { ...x, size: 64 }, value: 1 });
    }
    backend.run('unary', { kind: 'exp', x, out: x });
    await backend.sync();
    backend.trace(undefined);
    backend.run('unary', { kind: 'exp', x, out: x });
    await backend.sync();
    const after = performance.now();
    expect(events.map(({ name }) => name)).toEqual([...Array(2500).fill('fill'), 'unary']);
    let last = before - 1; // The clocks of threads agree to less than a ms.
    for (const { startMs, endMs } of events) {
      expect(startMs).toBeGreaterThanOrEqual(last - 0.5);
      expect(endMs).toBeGreaterThanOrEqual(startMs);
      last = startMs;
    }
    expect(last).toBeLessThan(after + 1);
    await backend.dispose();
  });

  it('reports kernels that ran before anybody waited for them', async () => {
    const backend = await createCpuBackend({ threads });
    const x = makeView(backend, 'f32', 64, new Float32Array(64));
    await backend.sync();
    const names: string[] = [];
    backend.trace((event) => names.push(event.name));
    backend.run('fill', { out: x, value: 1 });
    backend.flush();
    await new Promise((resolve) => setTimeout(resolve, 100));
    await backend.sync();
    expect(names).toEqual(['fill']);
    await backend.dispose();
  });
});

it('leaves the event loop free during a long product', async () => {
  const backend = await createCpuBackend({ threads: 1 });
  const size = 1024;
  const a = makeView(backend, 'f32', size * size, randomFloats(size * size, 1));
  const out = makeView(backend, 'f32', size * size);
  const product = () =>
    backend.run('matmul', {
      a,
      b: a,
      out,
      bias: undefined,
      m: size,
      n: size,
      k: size,
      transposeA: false,
      transposeB: false,
      aRow: size,
      bRow: size,
      outRow: size,
      batch: [1, 1],
      aBatch: [0, 0],
      bBatch: [0, 0],
      outBatch: [0, 0],
      alpha: 1,
      accumulate: false,
    });
  /** Counts the turns of the event loop until the given number of products is done. */
  const turnsDuring = async (numProducts: number) => {
    let turns = 0;
    const timer = setInterval(() => {
      turns++;
    }, 1);
    for (let i = 0; i < numProducts; i++) {
      product();
    }
    await backend.sync();
    clearInterval(timer);
    return turns;
  };
  // Four products are 8.6 GFLOP and take at least 100 ms. If they ran in this thread, they would be
  // done before the first turn. A busy machine gives this thread less time, so more of them may be
  // needed.
  let turns = 0;
  for (let numProducts = 4; turns < 3 && numProducts <= 64; numProducts *= 2) {
    turns = await turnsDuring(numProducts);
  }
  expect(turns).toBeGreaterThan(2);
  await backend.dispose();
});

it('lets a script end that never disposed it, after what it awaited', async () => {
  const printed = await runScript(
    'forgetful',
    `const backend = await createCpuBackend({ threads: 2 });
    const buffer = backend.alloc(1 << 24, 'x');
    const view = { buffer, byteOffset: 0, dtype: 'f32', size: 1 << 22 };
    for (let i = 0; i < 50; i++) backend.run('fill', { out: view, value: i });
    const bytes = await backend.read(buffer, 0, 4);
    console.log(new Float32Array(bytes.buffer)[0]);
    backend.run('fill', { out: view, value: 1 });`,
  );
  expect(printed).toBe('49\n');
});

it('ends its workers on dispose', async () => {
  const printed = await runScript(
    'workers',
    `const before = process.report.getReport().workers.length;
    const backend = await createCpuBackend({ threads: 3 });
    const during = process.report.getReport().workers.length;
    await backend.dispose();
    console.log(before, during, process.report.getReport().workers.length);`,
  );
  expect(printed).toBe('0 3 0\n');
});

it('starts its workers from a file of their own', async () => {
  const workerUrl = pathToFileURL(join(folder, 'worker.mjs'));
  const backend = await createCpuBackend({ threads: 2, workerUrl });
  const x = makeView(backend, 'f32', 2, new Float32Array(2));
  backend.run('fill', { out: x, value: 7 });
  expect(await readFloats(backend, x)).toEqual(Float32Array.of(7, 7));
  await backend.dispose();
});

it('rejects when a worker cannot start', async () => {
  const workerUrl = pathToFileURL(join(folder, 'absent.mjs'));
  await expect(createCpuBackend({ threads: 2, workerUrl })).rejects.toMatchObject({
    code: 'DEVICE_LOST',
  });
});
