// Gradients that sum over all pairs of attention, or over millions of picked elements, are shared
// by many lanes. These tests hold the work of the busiest lane against a model of slow GPUs, and
// the values against the reference, whatever is cut where.

import {
  type Backend,
  Device,
  gather,
  type KernelCalls,
  scaledDotProductAttention,
  type View,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import {
  createWebGpuBackend,
  type PlannedDispatch,
  type WebGpuBackend,
} from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Bench, type Options, reason, title, webGpu } from './support/webgpu-kit.js';

type Extents = readonly [batch: number, heads: number, queries: number, keys: number];

/** The longest that a lane may take: below it a page stays smooth beside the submit it is in. */
const MOST_MS = 50;

describe('on a driver that computes nothing', () => {
  let backend: WebGpuBackend;
  let device: Device;
  beforeAll(async () => {
    const gpu = openNodeGpu({ flags: ['backend=null'] });
    const opened = await (await gpu.requestAdapter())!.requestDevice();
    backend = await createWebGpuBackend({ device: opened, kernelProfile: 'hardware' });
    device = new Device(backend);
  });
  afterAll(() => backend.dispose());

  async function plan(step: () => Promise<void>): Promise<PlannedDispatch[]> {
    const found: PlannedDispatch[] = [];
    await device.dryRun(async () => {
      backend.onPlannedDispatch((dispatch) => found.push(dispatch));
      await step();
    });
    backend.onPlannedDispatch(undefined);
    return found;
  }

  function longest(dispatches: readonly PlannedDispatch[], kernel: string): number {
    const own = dispatches.filter((dispatch) => dispatch.kernel.startsWith(kernel));
    expect(own.length).toBeGreaterThan(0);
    return Math.max(...own.map(({ laneMs }) => laneMs!));
  }

  test.each([
    ['a head', [1, 12, 1, 1]],
    ['a key', [1, 1, 1, 1024]],
    ['all pairs', [1, 1, 1, 1]],
    ['a batch', [8, 1, 1, 1]],
    ['a query', [1, 1, 1024, 1]],
  ])('no lane has long with the gradient of a mask that has one element for %s', async (_, own) => {
    const [batch, heads, tokens, dim] = [8, 12, 1024, 64] as const;
    const found = await plan(async () => {
      const qkv = device.zeros([batch, tokens, heads, dim], { requiresGrad: true });
      const mask = device.zeros(own, { requiresGrad: true });
      const out = scaledDotProductAttention(qkv, qkv, qkv, { mask });
      await out.backward({ gradient: out.detach() });
    });
    expect(longest(found, 'attention mask')).toBeLessThan(MOST_MS);
    expect(longest(found, 'reduce sum')).toBeLessThan(MOST_MS);
    // The operations are those of all pairs, and a lane has at most 2^15 dimensions of them.
    const masks = found.filter(({ kernel }) => kernel.startsWith('attention mask'));
    const flops = masks.reduce((sum, dispatch) => sum + dispatch.flops!, 0);
    const lanes = masks.reduce((sum, dispatch) => sum + dispatch.invocations, 0);
    expect(flops).toBe(4 * batch * heads * tokens ** 2 * dim);
    expect(flops / lanes).toBeLessThanOrEqual(4 * 2 ** 15);
  });

  test('no lane has long with the gradient of a gather of 4 million from a million', async () => {
    const found = await plan(async () => {
      const x = device.zeros([1e6], { requiresGrad: true });
      const ids = device.zeros([4e6], { dtype: 'i32' });
      const y = gather(x, ids);
      await y.backward({ gradient: y.detach() });
    });
    for (const kernel of ['id order', 'gatherBackward chunks', 'gatherBackward runs']) {
      expect(longest(found, kernel)).toBeLessThan(MOST_MS);
    }
    expect(Math.max(...found.map(({ laneMs = 0 }) => laneMs))).toBeLessThan(MOST_MS);
  });
});

/** Makes the call of a mask's gradient, with statistics that make weights of 0.1 or so. */
function maskCall(
  bench: Bench,
  [batch, heads, queries, keys]: Extents,
  own: Extents,
): KernelCalls['attentionMaskGradient'] {
  const dim = 64;
  const strides = (rows: number) => ({
    batch: rows * heads * dim,
    head: dim,
    row: heads * dim,
  });
  const rows = (count: number) => bench.random(batch * count * heads * dim, 'f32');
  const size = own.reduce((product, extent) => product * extent);
  const numRows = batch * heads * queries;
  const maskStrides = own.map((extent, axis) =>
    extent === 1 ? 0 : own.slice(axis + 1).reduce((product, next) => product * next, 1),
  ) as unknown as Extents;
  const stats = bench.of(
    Float32Array.from({ length: 2 * numRows }, (_, i) =>
      i < numRows ? 2 + (i % 5) / 10 : (i % 7) / 7 - 0.5,
    ),
    'f32',
  );
  return {
    q: rows(queries),
    k: rows(keys),
    v: rows(keys),
    dOut: rows(queries),
    out: bench.zeros(batch * queries * heads * dim),
    stats,
    mask: bench.random(size, 'f32'),
    maskStrides,
    dMask: bench.zeros(size),
    querySegments: undefined,
    keySegments: undefined,
    dropout: undefined,
    batch,
    numHeads: heads,
    numKvHeads: heads,
    numQueries: queries,
    numKeys: keys,
    dim,
    scale: 0.125,
    isCausal: false,
    window: 0,
    queryOffset: 0,
    qStrides: strides(queries),
    kStrides: strides(keys),
    vStrides: strides(keys),
  } as KernelCalls['attentionMaskGradient'];
}

async function maskGradient(backend: Backend, extents: Extents, own: Extents) {
  const bench = new Bench(backend);
  const call = maskCall(bench, extents, own);
  backend.run('attentionMaskGradient', call);
  const values = new Float32Array((await bench.bytes(call.dMask)).slice().buffer);
  bench.freeAll();
  return values;
}

/** Returns dx of [1, rows, 1] for ids of which every `often`-th is not 3. */
async function gatherGradient(
  backend: Backend,
  {
    outer,
    rows,
    inner,
    count,
    often,
  }: Record<'outer' | 'rows' | 'inner' | 'count' | 'often', number>,
) {
  const bench = new Bench(backend);
  const size = outer * count * inner;
  // Each line has ids beyond the last row, which are left out.
  const list = Uint32Array.from({ length: size }, (_, i) =>
    i % often === 0 ? (i * 7919) % (rows + 2) : 3,
  );
  const [ids, dy] = [bench.of(list, 'u32'), bench.random(size, 'f32')];
  const dx: View = bench.random(outer * rows * inner, 'f32');
  const call = { ids: { ...ids, dtype: 'i32' }, dy, dx, outer, dim: rows, inner, count } as const;
  backend.run('gatherBackward', call);
  const values = new Float32Array((await bench.bytes(dx)).slice().buffer);
  bench.freeAll();
  return values;
}

/** The largest difference, relative to the largest value. */
function difference(got: Float32Array, want: Float32Array): number {
  const scale = Math.max(...want.map(Math.abs));
  return Math.max(...want.map((value, i) => Math.abs(value - got[i]!))) / scale;
}

describe.skipIf(reason !== undefined)(title('on a device'), () => {
  // Backends of one device compile each kernel once.
  let opened: GPUDevice;
  let whole: WebGpuBackend;
  const make = (options: Options = {}) =>
    createWebGpuBackend({ device: opened, kernelProfile: 'hardware', ...options });
  beforeAll(async () => {
    opened = await (await webGpu().requestAdapter())!.requestDevice();
    whole = await make();
  });
  afterAll(async () => {
    await whole.dispose();
    opened.destroy();
  });

  /** 600 keys are two parts of a row; 560 rows of three keys are more than one part, too. */
  const MASKS: readonly (readonly [Extents, Extents])[] = [
    [
      [2, 2, 5, 600],
      [1, 1, 1, 1],
    ],
    [
      [2, 2, 5, 600],
      [1, 2, 1, 1],
    ],
    [
      [2, 2, 5, 600],
      [2, 1, 5, 1],
    ],
    [
      [2, 2, 140, 3],
      [1, 1, 1, 3],
    ],
  ];
  test.each(MASKS)(
    'the gradient over pairs %j of a mask %j is the sum of its parts',
    async (extents, own) => {
      const want = await maskGradient(createReferenceBackend(), extents, own);
      expect(difference(await maskGradient(whole, extents, own), want)).toBeLessThan(1e-5);
    },
  );

  test("a mask's gradient has equal bits whatever a submit holds and a binding takes", async () => {
    // The keys of a batch take 307,200 bytes in the first shape, and its queries 71,680 in the
    // second, so the last two run batch by batch.
    const others = [
      await make({ maxFlops: 20_000 }),
      await make({ maxBindingBytes: 320 * 1024 }),
      await make({ maxBindingBytes: 128 * 1024 }),
    ];
    for (const [extents, own] of MASKS) {
      const want = await maskGradient(whole, extents, own);
      for (const other of others.slice(0, extents[3] === 3 ? 3 : 2)) {
        expect(await maskGradient(other, extents, own)).toEqual(want);
      }
    }
    await Promise.all(others.map((other) => other.dispose()));
  });

  const GATHERS = [
    { outer: 1, rows: 40, inner: 1, count: 5000, often: 3 },
    { outer: 2, rows: 700, inner: 3, count: 1100, often: 1 },
    { outer: 1, rows: 5, inner: 2, count: 2048, often: 4096 },
  ];
  test.each(GATHERS)('the gradient of a gather of long lines, %j, is a sum by id', async (call) => {
    const want = await gatherGradient(createReferenceBackend(), call);
    const got = await gatherGradient(whole, call);
    expect(difference(got, want)).toBeLessThan(1e-5);
    expect(await gatherGradient(whole, call)).toEqual(got);
  });

  test('a line of a gather beyond a binding is sorted window by window', async () => {
    const split = await make({ maxBindingBytes: 8 * 1024 });
    for (const call of GATHERS) {
      const want = await gatherGradient(createReferenceBackend(), call);
      expect(difference(await gatherGradient(split, call), want)).toBeLessThan(1e-5);
    }
    await split.dispose();
  });
});
