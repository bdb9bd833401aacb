// What `npm run kernels` prints.

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, it } from 'vitest';
import { hardwareKernels } from '../../bench/kernels/hardware-kernels.mjs';
import { listOf, matching, pagesOf } from '../../bench/kernels/kernel-pages.mjs';
import { shaderStats } from '../../bench/kernels/shader-stats.mjs';
import { factsOf } from '../../bench/kernels/text-facts.mjs';
import { ROOT } from '../checks/workspace.ts';

const NAME = 'attention f32 wide 64x8x2';
const packages = {
  createWebGpuBackend,
  openNodeGpu,
  kernelCases: () => kernelCases().filter(({ name }) => name.startsWith('attention')),
};
const kernels = await hardwareKernels({ packages, tiles: [] });

it('shows the text of the kernel that is named, with its bindings and workgroup memory', () => {
  const shown = pagesOf(matching(kernels, NAME.split(' ')), { missing: 'no compiler' });
  expect(shown).toMatch(/^attention f32 wide 64x8x2\n {2}text {7}\d+ bytes, \d+ lines\n/);
  expect(shown).toContain('  workgroup  64, 64 invocations\n');
  expect(shown).toMatch(/^ {2}shared {5}7332 bytes; left 2176 \(/m);
  expect(shown).toContain('  binding 4  out: array<vec4<f32>>, read_write\n');
  expect(shown).toContain('  RDNA 3     not compiled: no compiler\n');
  expect(shown.match(/^@compute/gm)).toHaveLength(1);
});

it('finds the kernels whose names have all words, in any order and case', () => {
  const found = matching(kernels, ['WIDE', 'dropout', 'queries']).map(({ label }) => label);
  expect(found).toEqual(['attention queries f32 wide segments dropout 64x8x2']);
});

it('lists every kernel where there are no words', () => {
  const lines = listOf(matching(kernels, [])).trimEnd().split('\n');
  expect(lines).toHaveLength(1 + kernels.length);
  expect(lines).toContainEqual(
    expect.stringMatching(/^ +\d+ +64 +7332 attention f32 wide 64x8x2$/),
  );
});

it('answers words that no kernel of the profile has with the nearest names, and fails', () => {
  const script = join(ROOT, 'bench/kernels/show.mjs');
  const args = [script, '--profile', 'software', 'atention', 'weights'];
  const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  expect({ stdout, status }).toEqual({ stdout: '', status: 1 });
  expect(stderr).toContain('kernels for software, got "atention weights"');
  expect(stderr).toContain('\n  attention weights x64\n');
});

it('counts workgroup memory as the specification of WGSL lays it out', () => {
  const wgsl = `@group(0) @binding(1) var<storage, read> x: array<f32>;
const LANES = 3u;
struct Best { key: u32, at: vec2<f32> }
var<workgroup> a: array<vec3<f32>, LANES>;
var<workgroup> b: array<array<vec2<f16>, 5>, 2>;
var<workgroup> c: atomic<u32>;
var<workgroup> d: Best;
@compute @workgroup_size(8, 4)
fn main() {}`;
  expect(factsOf(wgsl)).toMatchObject({
    invocations: 32,
    memoryBytes: 3 * 16 + 2 * 5 * 4 + 4 + 16,
    bindings: [{ index: 1, name: 'x', type: 'array<f32>', access: 'read' }],
  });
});

it('counts the multiply-adds of a loop that share an instruction with another one', () => {
  const resources = [
    'VGPRs',
    'SGPRs',
    'Spilled VGPRs',
    'Spilled SGPRs',
    'Scratch size',
    'LDS size',
  ];
  const figures = [...resources, 'Subgroups per SIMD', 'Code size'].map((name) => `${name}: 0`);
  const { loop } = shaderStats(
    [
      ...figures,
      'BB0:',
      '\tv_fma_f32 v0, v1, v2, v0 ; 0000',
      'BB1:',
      '\tv_dual_fmac_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5 ; 0000',
      '\tv_dual_fmac_f32 v0, v1, v2 :: v_dual_mov_b32 v3, v4 ; 0000',
      '\tv_fmac_f32 v0, v1, v2 ; 0000',
      '\ts_add_u32 s0, s0, 1 ; 0000',
      '\ts_waitcnt lgkmcnt(0) ; 0000',
      '\ts_cbranch_scc1 BB1 ; 0000',
    ].join('\n'),
  );
  expect(loop).toMatchObject({ multiplyAdds: 4, dualMultiplyAdds: 3, otherVector: 1, scalar: 1 });
});
