// WebGPU's second implementation: wgpu and naga in Deno, over a software driver. The packages run
// there, and naga takes the text of the kernels, which also keep rules about what compilers differ
// in. In `npm test` that is a case of each kernel in f32, with a tile of products; in `npm run
// test:long` all cases, all tiles, and a page's training.

import * as testing from '@shardweave/tensor-core/testing';
import * as webgpu from '@shardweave/tensor-core/webgpu';
import * as webgpuNode from '@shardweave/tensor-core/webgpu-node';
import { beforeAll, describe, expect, it } from 'vitest';
import { hardwareKernels, type KernelText } from '../../bench/kernels/hardware-kernels.mjs';
import { wgslFaults } from '../checks/wgsl-rules.ts';
import { firstOfEach } from '../test-kit/first-of-each.ts';
import { type Answer, runDeno } from './run-deno.ts';

const isLong = process.env.SHARDWEAVE_LONG === '1';
/** The slowest, the whole suite, took four minutes. */
const LIMIT_MS = isLong ? 1_800_000 : 240_000;
/** Cases remember what the reference computed, so that it does so once. */
const ALL = testing.kernelCases();
const SOME = firstOfEach(ALL);
/**
 * In 16 bits kernels differ by how they load and store, which casts, copies and products show. Both
 * norms are one kernel.
 */
const FEW = SOME.filter(
  ({ name }) =>
    !name.startsWith('rmsNorm') && (/ f32\b/.test(name) || /^(cast|copy|matmul)/.test(name)),
);

describe('the conformance suite in Deno', () => {
  const names = (isLong ? ALL : FEW).map(({ name }) => name);
  let results: Answer<{ kind: 'conformance' }>;
  beforeAll(async () => {
    results = await runDeno({ kind: 'conformance', names }, { timeoutMs: LIMIT_MS });
  }, LIMIT_MS);

  it('has at least 34 cases, and each one ran', () => {
    expect(names.length).toBeGreaterThanOrEqual(34);
    const ran = [...results.passed, ...Object.keys(results.failed)];
    expect(ran.toSorted()).toEqual(names.toSorted());
  });

  it.each(names)('%s', (name) => {
    expect(results.failed[name]).toBeUndefined();
  });
});

it.runIf(isLong)(
  "a page's loop in Deno trains as on the CPU device",
  { timeout: LIMIT_MS },
  async () => {
    const { webgpu: trained, cpu } = await runDeno({ kind: 'train' }, { timeoutMs: LIMIT_MS });
    expect(trained.numAllGathers).toBeGreaterThan(0);
    expect(trained.losses.at(-1)).toBeLessThan(trained.losses[0]!);
    const apart = trained.losses.map((loss, step) => Math.abs(loss - cpu.losses[step]!) / loss);
    expect(apart).toHaveLength(cpu.losses.length);
    // Five steps of f32 were 2e-7 apart.
    expect(Math.max(...apart)).toBeLessThan(1e-5);
  },
);

it('a wait in Deno asks the device once, whose loop sleeps', { timeout: LIMIT_MS }, async () => {
  expect(await runDeno({ kind: 'wait' }, { timeoutMs: LIMIT_MS })).toEqual({ numAsked: 1 });
});

describe('the text of kernels', () => {
  const F16 = 'shader-f16';
  const UNITS = ['subgroups', 'subgroup-size-control', 'chromium-experimental-subgroup-matrix'];
  const PROFILES = [
    { kernelProfile: 'hardware', features: [F16, ...UNITS] },
    { kernelProfile: 'hardware', features: [F16] },
    { kernelProfile: 'software', features: [F16, 'subgroups'] },
    // What a page gets in Firefox, and wherever a device offers neither.
    { kernelProfile: 'hardware', features: [] },
    { kernelProfile: 'software', features: [] },
  ] as const;
  const TILES = ['shared 64x64x16/4', 'matrix 128x64x32/16x16x16'];
  /**
   * Texts for devices with a feature that wgpu doesn't offer, or the adapter, so that it never gets
   * them.
   */
  const UNSUPPORTED = [
    { text: /^enable f16;/m, refusal: /`f16` extension is not supported/, isHere: 'hasF16' },
    {
      text: /^enable subgroups;/m,
      refusal: /`subgroups` enable-extension is not yet supported/, // gfx-rs/wgpu#5555
    },
  ] as const;
  let texts: readonly KernelText[];

  beforeAll(async () => {
    const inF32 = SOME.filter(({ name }) => / f32\b/.test(name));
    const attention = ALL.filter(({ name }) => /^attention f32/.test(name));
    const cases = isLong ? ALL : [...inF32, ...attention];
    const packages = { ...webgpu, ...webgpuNode, kernelCases: () => cases };
    const tiles = isLong ? {} : { tiles: TILES };
    const found = new Map<string, KernelText>();
    for (const profile of isLong ? PROFILES : PROFILES.slice(0, 1)) {
      for (const text of await hardwareKernels({ packages, ...profile, ...tiles })) {
        found.set(text.wgsl, text);
      }
    }
    texts = [...found.values()];
  }, LIMIT_MS);

  it('keeps the rules', () => {
    expect(texts.length).toBeGreaterThan(isLong ? 1800 : 250);
    const faults = texts.flatMap(({ label, wgsl }) =>
      wgslFaults(wgsl).map((fault) => `${label}: ${fault}`),
    );
    expect(faults).toEqual([]);
  });

  it('is taken by naga', { timeout: LIMIT_MS }, async () => {
    const given = isLong ? texts : firstOfFamilies(texts);
    const order = { kind: 'compile', texts: given } as const;
    // SwiftShader has no 16-bit floats.
    const result = await runDeno(order, { timeoutMs: LIMIT_MS, driver: 'mesa' });
    const unsupported = UNSUPPORTED.filter(
      (one) => !('isHere' in one && result[one.isHere] === true),
    );
    const expected = given.flatMap(({ label, wgsl }) => {
      const one = unsupported.find(({ text }) => text.test(wgsl));
      return one === undefined ? [] : [{ label, message: expect.stringMatching(one.refusal) }];
    });
    expect(result.refused).toEqual(expected);
    expect(result.numAccepted).toBe(given.length - expected.length);
  });
});

/** The first of the texts whose labels begin with the same two words. naga needs 17 ms a text. */
function firstOfFamilies(texts: readonly KernelText[]): KernelText[] {
  const found = new Map<string, KernelText>();
  for (const text of texts) {
    const family = text.label.split(' ').slice(0, 2).join(' ');
    found.set(family, found.get(family) ?? text);
  }
  return [...found.values()];
}
