import { describe, expect, it } from 'vitest';
import { type Diagnosis, diagnosisText } from '../src/commands/doctor.js';
import { buildCommand } from './support/build-command.js';
import { runCli } from './support/run-cli.js';

const GPU = {
  name: 'NVIDIA H100, driver 550',
  device: 'NVIDIA H100',
  isReachable: true,
  vendor: 'nvidia',
  architecture: 'hopper',
  isSoftware: false,
  hasShaderF16: true,
  hasSubgroups: true,
  hasTimestamps: true,
  maxBufferBytes: 2 ** 31,
  maxBindingBytes: 2 ** 30,
};
const FOUND: Diagnosis = {
  node: '22.1.0',
  system: 'linux x64',
  cores: 8,
  memoryBytes: 2 ** 35,
  freeBytes: 2 ** 34,
  cpu: { description: 'wasm relaxed simd, 1 thread', numericClass: 'x' },
  products: { library: 'OpenBLAS 0.3.21 Haswell', timesWasm: 1.9 },
  webgpu: { adapters: [GPU] },
  mpirun: 'mpirun (Open MPI) 4.1.4',
};

describe('shardweave doctor', () => {
  it('tells what this machine has, as its own parts see it', async () => {
    const entry = await buildCommand();
    const { code, out, err } = await runCli(['doctor', '--json'], { entry });
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const found = JSON.parse(out) as Diagnosis;
    expect(found.node).toBe(process.versions.node);
    expect(found.freeBytes).toBeGreaterThan(2 ** 27);
    expect(found.freeBytes).toBeLessThanOrEqual(found.memoryBytes);
    expect(found.cpu.description).toMatch(/^wasm (relaxed )?simd, /);
    for (const { isSoftware } of found.webgpu.adapters) {
      expect(isSoftware).toBeTypeOf('boolean');
    }
    expect(found.products?.timesWasm ?? 1).toBeGreaterThan(0);
    expect(diagnosisText(found)).toContain(`Node ${process.versions.node}`);
  });

  it('names nothing where all is there', () => {
    const text = diagnosisText(FOUND);
    expect(text).toMatch(/8 cores, 16\.0 GiB of 32\.0 GiB free/);
    expect(text).toMatch(/ 0: NVIDIA H100, driver 550, hardware\n .*16-bit shaders yes/);
    expect(text).toMatch(/--device webgpu takes the first; webgpu:INDEX, /);
    expect(text).not.toMatch(/Dawn opens the one/);
    expect(text).toContain('  products: OpenBLAS 0.3.21 Haswell, 1.9 times wasm\n');
    expect(text).toMatch(/\nNothing is missing\.\n$/);
  });

  it('says what to install where products stay in wasm', () => {
    const text = diagnosisText({ ...FOUND, products: undefined });
    expect(text).toMatch(/What is missing\n {2}A library for products, .*libopenblas0-pthread/);
  });

  it('lists every card with its index, and says which one Dawn does not open', () => {
    const twin = { ...GPU, isReachable: false };
    const text = diagnosisText({ ...FOUND, webgpu: { adapters: [GPU, twin] } });
    expect(text).toMatch(
      / 0: NVIDIA H100, .*\n.*16-bit.*\n +1: NVIDIA H100, .*\n.*16-bit.*\n +Dawn opens the one of that name before it instead: docs\/several-gpus\.md\n/,
    );
  });

  it.each<[string, Partial<Diagnosis>, RegExp]>([
    [
      'no adapter',
      { webgpu: { adapters: [], problem: 'no driver' } },
      /none: no driver\n[\s\S]*A hardware adapter/,
    ],
    [
      'a software one',
      { webgpu: { adapters: [{ ...GPU, isSoftware: true }] } },
      /A hardware adapter: --device auto/,
    ],
    [
      'an old engine',
      { cpu: { description: 'wasm simd, 1 thread', numericClass: 'x' } },
      /Relaxed SIMD, .*install Node/,
    ],
    ['no MPI', { mpirun: undefined }, /no mpirun\n[\s\S]*mpirun, for --transport mpi alone/],
  ])('says what to do about %s', (_, difference, expected) => {
    const text = diagnosisText({ ...FOUND, ...difference });
    expect(text).toMatch(/\nWhat is missing\n/);
    expect(text).toMatch(expected);
  });
});
