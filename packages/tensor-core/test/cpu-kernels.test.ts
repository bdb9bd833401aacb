// The builds of the CPU device's kernels: which one runs, and that one of other sources does not.

import { expect, test } from 'vitest';
import { compileKernels } from '../src/backends/cpu/compile-kernels.js';
import * as inline from '../src/generated/cpu-inline.js';
import * as threaded from '../src/generated/cpu-threaded.js';

test.each([
  ['inline', inline],
  ['threaded', threaded],
])('kernels of other command codes are refused: %s', async (_, build) => {
  await expect(compileKernels(build)).resolves.toBeInstanceOf(WebAssembly.Module);
  // As a build is left behind when a code moves: the module itself still compiles.
  await expect(
    compileKernels({ ...build, layoutHash: build.layoutHash ^ 1 }),
  ).rejects.toMatchObject({ code: 'STATE', message: expect.stringContaining('npm run build') });
});
