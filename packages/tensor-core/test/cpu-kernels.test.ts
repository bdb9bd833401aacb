// These tests check which build of the CPU device's kernels runs, and that a build of other sources
// is refused.

import { expect, test } from 'vitest';
import { compileKernels } from '../src/backends/cpu/compile-kernels.js';
import * as fused from '../src/generated/cpu-fused.js';
import * as plain from '../src/generated/cpu-plain.js';

test.each([
  ['fused', fused],
  ['plain', plain],
])('kernels of other command codes are refused: %s', async (_, build) => {
  await expect(compileKernels(build, { isShared: true })).resolves.toBeInstanceOf(
    WebAssembly.Module,
  );
  // A build like this is left behind when a code in layout.ts changes. The module itself still
  // compiles.
  await expect(
    compileKernels({ ...build, layoutHash: build.layoutHash ^ 1 }, { isShared: true }),
  ).rejects.toMatchObject({ code: 'STATE', message: expect.stringContaining('npm run build') });
});

test.each([true, false])('a module takes memory of its kind alone: shared %s', async (isShared) => {
  const module = await compileKernels(plain, { isShared });
  const others = WebAssembly.Module.imports(module).map(({ name }) => [name, () => 0]);
  const instance = (shared: boolean) => {
    const memory = new WebAssembly.Memory({ initial: 1, maximum: 65536, shared });
    return WebAssembly.instantiate(module, { env: { ...Object.fromEntries(others), memory } });
  };
  await expect(instance(isShared)).resolves.toBeInstanceOf(WebAssembly.Instance);
  await expect(instance(!isShared)).rejects.toThrow(WebAssembly.LinkError);
});
