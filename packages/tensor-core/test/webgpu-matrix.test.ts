// These are products by matrix units: their index functions, edges, parts of k and epilogues are
// compared with float64, on a device without matrix units by way of subgroup-matrix.ts. Further
// tests check when they are chosen and that the numeric class says so. No matrix unit computes
// here.

import { Device, type View } from '@shardweave/tensor-core';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CONFIG, LANES, withoutSubgroupMatrices } from './support/subgroup-matrix.js';
import { Bench, isLong, open, product, reason, title, webGpu } from './support/webgpu-kit.js';

const TILE = 'matrix 64x64x32/16x16x16';
const FEATURES = ['shader-f16', 'subgroups', 'timestamp-query'];

const NOTHING = '@compute @workgroup_size(1) fn main() {}';

/**
 * Opens a device that claims matrix units of `configs`. `rewrite` changes the text that it
 * compiles.
 */
async function openMatrix(
  configs: readonly unknown[],
  rewrite: (code: string, label: string) => string,
) {
  const adapter = (await webGpu().requestAdapter())!;
  const device = await adapter.requestDevice({
    requiredFeatures: FEATURES as GPUFeatureName[],
    requiredLimits: { maxComputeWorkgroupStorageSize: 32768 },
  });
  Object.defineProperty(device, 'features', {
    value: new Set([...FEATURES, 'chromium-experimental-subgroup-matrix']),
  });
  const create = device.createShaderModule.bind(device);
  device.createShaderModule = ({ label = '', code }) =>
    create({ label, code: rewrite(code, label) });
  const { vendor, architecture, description, isFallbackAdapter } = adapter.info;
  const adapterInfo = {
    ...{ vendor, architecture, description, isFallbackAdapter, device: '' },
    ...{ subgroupMinSize: LANES, subgroupMaxSize: LANES, subgroupMatrixConfigs: configs },
  } as unknown as GPUAdapterInfo;
  const backend = await createWebGpuBackend({ device, adapterInfo, kernelProfile: 'hardware' });
  return { backend, device };
}

describe.skipIf(reason !== undefined)(title('products by matrix units'), () => {
  let opened: Awaited<ReturnType<typeof openMatrix>>;
  let backend: WebGpuBackend;
  beforeAll(async () => {
    opened = await openMatrix([CONFIG], (code) =>
      code.includes('subgroupMatrix') ? withoutSubgroupMatrices(code) : code,
    );
    backend = opened.backend;
  });
  afterAll(async () => {
    await backend.dispose();
    opened.device.destroy();
  });

  async function valuesOf(bench: Bench, view: View): Promise<Float32Array> {
    const wide = bench.zeros(view.size);
    bench.backend.run('cast', { x: view, out: wide });
    return new Float32Array((await bench.bytes(wide)).slice().buffer);
  }

  // The cases have edges of tiles and of blocks, rows that vectors fit and rows that they don't, a
  // sum that is cut, and sums of an operand. A CPU driver compiles each for seconds if its cache is
  // cold, so all but the first are long tests.
  const cases = [
    { letters: 'NT', m: 40, n: 68, k: 1100, out: 'f16', rest: { alpha: 0.5 } },
    { letters: 'TN', m: 37, n: 70, k: 45, out: 'f32', rest: { accumulate: true } },
    { letters: 'NN', m: 76, n: 72, k: 52, out: 'f16', rest: { alpha: 0.5, accumulate: true } },
    { letters: 'TT', m: 68, n: 36, k: 33, out: 'f32', rest: {} },
  ] as const;
  test.each(cases.slice(0, isLong ? cases.length : 1))(
    '$letters of $m x $n x $k is the product',
    async ({ letters, m, n, k, out, rest }) => {
      const bench = new Bench(backend);
      const classes = ['small', 'medium'].map((size) => `${letters} f16 f16 ${out} ${size}`);
      backend.importMatmulChoices(Object.fromEntries(classes.map((name) => [name, TILE])));
      const names: string[] = [];
      backend.trace(({ name, track }) => track === 'device' && names.push(name));
      const [a, b, bias] = [m * k, k * n, n].map((size) => bench.random(size, 'f16'));
      const target = bench.random(m * n, out);
      const before = await valuesOf(bench, target);
      const [transposeA, transposeB] = [letters[0] === 'T', letters[1] === 'T'];
      const call = product({ m, n, k, transposeA, transposeB });
      const bSums = out === 'f32' ? bench.zeros(n) : undefined;
      backend.run('matmul', { ...call, ...rest, a: a!, b: b!, bias: bias!, out: target, bSums });
      const found = await valuesOf(bench, target);
      const [x, y, z] = await Promise.all([a!, b!, bias!].map((view) => valuesOf(bench, view)));
      await backend.sync();
      backend.trace(undefined);
      expect(names.filter((name) => name.includes(TILE))).toHaveLength(1);
      const { alpha, accumulate } = { alpha: 1, accumulate: false, ...rest };
      let worst = 0;
      for (let row = 0; row < m; row++) {
        for (let col = 0; col < n; col++) {
          let sum = 0;
          for (let q = 0; q < k; q++) {
            sum +=
              x![transposeA ? q * m + row : row * k + q]! *
              y![transposeB ? col * k + q : q * n + col]!;
          }
          const expected = alpha * sum + z![col]! + (accumulate ? before[row * n + col]! : 0);
          worst = Math.max(
            worst,
            Math.abs(found[row * n + col]! - expected) / (1 + Math.abs(expected)),
          );
        }
      }
      const sums = bSums === undefined ? [] : await valuesOf(bench, bSums);
      sums.forEach((found, col) => {
        let sum = 0;
        for (let q = 0; q < k; q++) {
          sum += y![transposeB ? col * k + q : q * n + col]!;
        }
        worst = Math.max(worst, Math.abs(found - sum) / (1 + Math.abs(sum)));
      });
      expect(sums).toHaveLength(bSums === undefined ? 0 : n);
      expect(worst).toBeLessThan(out === 'f16' ? 2 ** -10 : 1e-5);
      bench.freeAll();
    },
  );

  test('matrix units are used only where a choice names them, and then it is another class', async () => {
    const plain = await open({ kernelProfile: 'hardware' });
    const labels: string[] = [];
    const fresh = await openMatrix([CONFIG], (_, label) => {
      labels.push(label);
      return NOTHING;
    });
    const device = new Device(fresh.backend);
    const before = await device.numericClass();
    expect(before).not.toContain('tiles');
    const bench = new Bench(fresh.backend);
    const [a, b, out] = [1, 2, 3].map(() => bench.random(64 * 64, 'f16'));
    const call = product({ m: 64, n: 64, k: 64, transposeA: false, transposeB: false });
    const choices = { 'NN f16 f16 f16 small': TILE, 'NN f32 f32 f32 small': TILE };
    labels.length = 0;
    for (const table of [{}, choices]) {
      fresh.backend.importMatmulChoices(table);
      plain.importMatmulChoices(table);
      fresh.backend.run('matmul', { ...call, a: a!, b: b!, bias: undefined, out: out! });
    }
    expect(labels.map((label) => label.includes('matrix'))).toEqual([false, true]);
    expect(await device.numericClass()).toMatch(/\), tiles [0-9a-f]{8}, bits /);
    bench.freeAll();
    device.dispose();
    await Promise.all([fresh.backend.dispose(), plain.dispose()]);
    fresh.device.destroy();
  });

  test('matrix units of types or sizes that no tile has are not used', async () => {
    const choices = { 'NN f16 f16 f16 small': TILE };
    const labels: string[] = [];
    for (const config of [
      { ...CONFIG, resultComponentType: 'f16' },
      { ...CONFIG, componentType: 'i8' },
      { ...CONFIG, N: 12 },
    ]) {
      const { backend: other, device } = await openMatrix([config], (_, label) => {
        labels.push(label);
        return NOTHING;
      });
      labels.length = 0;
      other.importMatmulChoices(choices);
      const bench = new Bench(other);
      const [a, b, out] = [1, 2, 3].map(() => bench.random(64 * 64, 'f16'));
      const call = product({ m: 64, n: 64, k: 64, transposeA: false, transposeB: false });
      other.run('matmul', { ...call, a: a!, b: b!, bias: undefined, out: out! });
      expect(labels.at(-1)).toMatch(/^matmul .* shared /);
      bench.freeAll();
      await other.dispose();
      device.destroy();
    }
  });
});
