// These tests cover what only the WebGPU device has: batches, staging, one buffer bound twice,
// choices of tiles and traces.

import type { View } from '@shardweave/tensor-core';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  Bench,
  isLong,
  open,
  openQuick,
  product,
  reason,
  title,
  webGpu,
} from './support/webgpu-kit.js';

const HARDWARE_TILES = [
  'shared 32x32x16/4',
  'shared 64x64x16/4',
  'shared 64x64x8/8',
  'shared 128x64x8/8',
  'shared 128x128x8/8',
] as const;
/** The smallest and the largest: a CPU driver compiles each for most of a second. */
const SOME_TILES = [HARDWARE_TILES[0], HARDWARE_TILES[4]];

describe.skipIf(reason !== undefined)(title('webgpu device, queue'), () => {
  let backend: WebGpuBackend;
  let bench: Bench;
  beforeAll(async () => {
    backend = await open();
    bench = new Bench(backend);
  });
  afterAll(() => backend.dispose());

  test('200 read-backs in a row, and 200 at once', async () => {
    const x = bench.zeros(1);
    const step = () => backend.run('affine', { x, out: x, scale: 1, shift: 1 });
    const values: number[] = [];
    for (let i = 0; i < 200; i++) {
      step();
      values.push(await bench.value(x));
    }
    const pending = Array.from({ length: 200 }, () => {
      step();
      return bench.value(x);
    });
    values.push(...(await Promise.all(pending)));
    expect(values).toEqual(Array.from({ length: 400 }, (_, i) => i + 1));
  });

  test('a steady state makes no new objects', async () => {
    const [a, b, out] = [bench.random(4096, 'f32'), bench.random(4096, 'f32'), bench.zeros(4096)];
    const step = async () => {
      backend.write(a.buffer, 0, new Uint8Array(4 * 4096));
      const call = product({ m: 64, n: 64, k: 64, transposeA: false, transposeB: false });
      backend.run('matmul', { a, b, bias: undefined, out, ...call });
      const extent = { outer: 1, dim: 4096, inner: 1 };
      backend.run('reduce', { kind: 'sum', x: out, out: { ...a, size: 1 }, ...extent });
      await backend.read(a.buffer, 0, 4);
    };
    for (let i = 0; i < 5; i++) {
      await step();
    }
    const { submits: _before, ...before } = backend.statistics();
    const usage = backend.usage();
    for (let i = 0; i < 20; i++) {
      await step();
    }
    const { submits: _after, ...after } = backend.statistics();
    expect(after).toEqual(before);
    expect(backend.usage()).toEqual(usage);
  });

  test('uploads that nobody waits for hold bounded staging memory', async () => {
    const x = bench.zeros(2 ** 20);
    const bytes = new Uint8Array(4 * 2 ** 20);
    for (let i = 0; i < 60; i++) {
      backend.write(x.buffer, 0, bytes);
      backend.flush();
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    expect(backend.statistics().staging.bytes).toBeLessThan(180 * 1024 * 1024);
  });

  test('a binding may be shared: inputs and outputs in one buffer', async () => {
    const all = bench.random(1000, 'f32');
    const part = (start: number): View => ({ ...all, byteOffset: 4 * start, size: 100 });
    const before = new Float32Array((await bench.bytes(all)).buffer);
    const call = { shape: [100], aStrides: [1], bStrides: [1] };
    backend.run('binary', { kind: 'add', a: part(0), b: part(110), out: part(220), ...call });
    const after = new Float32Array((await bench.bytes(all)).buffer);
    const want = before.slice();
    for (let i = 0; i < 100; i++) {
      want[220 + i] = want[i]! + want[110 + i]!;
    }
    expect(after).toEqual(want);
  });

  // Tuning compiles every tile, which takes half a minute on a CPU driver with a cold shader cache.
  test.runIf(isLong)('choices of tiles go from one backend to another', async () => {
    const shapes = [64, 512].map((size) => [size, size, 32] as const);
    const table = await backend.tuneMatmul({ shapes });
    const sizes = Object.keys(table).map((name) => name.split(' ').at(-1));
    expect(sizes.sort()).toEqual(['medium', 'medium', 'medium', 'small', 'small', 'small']);
    const other = await open({ matmulChoices: table });
    expect(other.exportMatmulChoices()).toEqual(table);
    await other.dispose();
  });

  test('each class of sizes has a choice of its own', async () => {
    const tiles = { small: 'direct 8x8x8', medium: 'direct 4x4x8', large: 'direct 8x8x8' };
    const classes = Object.entries(tiles).map(([size, tile]) => [`NN f32 f32 f32 ${size}`, tile]);
    const other = await open({ matmulChoices: Object.fromEntries(classes) });
    const seeded = new Bench(other);
    const kernels: string[] = [];
    other.trace(({ name, track }) => track === 'device' && kernels.push(name));
    for (const size of [64, 256, 512]) {
      const [a, b, out] = [1, 2, 3].map(() => seeded.zeros(size * size));
      const call = product({ m: size, n: size, k: size, transposeA: false, transposeB: false });
      other.run('matmul', { a: a!, b: b!, bias: undefined, out: out!, ...call });
    }
    await other.sync();
    const chosen = kernels.filter((name) => name.startsWith('matmul'));
    expect(chosen.map((name) => name.replace(/.*(?=direct)/, ''))).toEqual(Object.values(tiles));
    await other.dispose();
  });

  // A CPU driver compiles a tile for seconds if its cache is cold, so for 16 bits only the tiles
  // run that differ most.
  test.each([
    ['f32', ['direct 8x8x8', 'broadcast 16x2x8'], isLong ? HARDWARE_TILES : SOME_TILES, []],
    ['f16', [], ['shared 32x32x16/4'], ['shared 64x64x8/8']],
    ['bf16', [], ['shared 64x64x16/4'], []],
  ] as const)(
    'tiles give equal bits in %s',
    async (dtype, softwareTiles, hardwareTiles, wordTiles) => {
      const kernelProfile = 'hardware';
      // The tiles that compile longest run on another driver, which has no f16, and whose bits are
      // the same.
      const hardware = await (dtype === 'f16' ? open : openQuick)({ kernelProfile });
      const adapter = await webGpu().requestAdapter();
      // This device has no shader-f16, so what it loads is unpacked from words.
      const device = await adapter!.requestDevice({ requiredFeatures: ['timestamp-query'] });
      const words = await open({ kernelProfile, device });
      const tiles = [
        ...['direct 4x4x8', ...softwareTiles].map((tile) => [backend, tile] as const),
        ...hardwareTiles.map((tile) => [hardware, tile] as const),
        ...wordTiles.map((tile) => [words, tile] as const),
      ];
      const results = new Map<string, string>();
      const sums = new Set<string>();
      for (const [chosen, tile] of tiles) {
        chosen.importMatmulChoices({ [`NN ${dtype} ${dtype} ${dtype} small`]: tile });
        const names: string[] = [];
        chosen.trace(({ name, track }) => track === 'device' && names.push(name));
        const seeded = new Bench(chosen);
        const [a, b, out] = [140 * 52, 52 * 132, 140 * 132].map((n) => seeded.random(n, dtype));
        // The smallest tile for hardware makes no sums.
        const bSums = tile.includes('32x32') ? undefined : seeded.random(132, 'f32');
        const call = product({ m: 140, n: 132, k: 52, transposeA: false, transposeB: false });
        chosen.run('matmul', { a: a!, b: b!, bias: undefined, out: out!, bSums, ...call });
        results.set(tile, Buffer.from(await seeded.bytes(out!)).toString('base64'));
        if (bSums !== undefined) {
          sums.add(Buffer.from(await seeded.bytes(bSums)).toString('base64'));
        }
        await chosen.sync();
        chosen.trace(undefined);
        expect(names.filter((name) => name.includes(tile))).toHaveLength(1);
        seeded.freeAll();
      }
      const [first] = results.values();
      const others = [...results].filter(([, bits]) => bits !== first).map(([tile]) => tile);
      expect(others).toEqual([]);
      expect(sums.size).toBe(1);
      await Promise.all([hardware.dispose(), words.dispose()]);
      device.destroy();
    },
  );

  test('a trace names kernels and transfers, with times in order', async () => {
    const events: { name: string; track: string; startMs: number; endMs: number }[] = [];
    backend.trace((event) => events.push(event));
    const x = bench.random(4096, 'f32');
    backend.run('unary', { kind: 'exp', x, out: x });
    await backend.read(x.buffer, 0, 4096);
    await backend.sync();
    backend.trace(undefined);
    expect(events.map((e) => e.track)).toContain('staging');
    expect(events.every((e) => e.endMs >= e.startMs)).toBe(true);
    const [kernel] = events.filter((e) => e.track === 'device');
    expect(kernel?.name).toContain('unary exp');
  });
});
