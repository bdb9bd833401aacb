// Step `blas` provides OpenBLAS for the tests of native products. It uses the one that the loader
// finds, or installs Debian's or Ubuntu's by apt under the rules of system-packages.mjs. Without
// one those tests skip and give the reason; macOS has Accelerate.
import { existsSync, readFileSync } from 'node:fs';
import { announce } from './step.mjs';
import { installPackages } from './system-packages.mjs';

/** Whether a library that is taken by its name alone is there. */
export function hasBlas(loaderCache = '/etc/ld.so.cache') {
  const cache = existsSync(loaderCache) ? readFileSync(loaderCache, 'latin1') : '';
  return process.platform === 'darwin' || cache.includes('libopenblas.so.0\0');
}

/** @returns {{environment: Record<string, string>}} variables for the test process */
export function blasForTests(loaderCache) {
  if (hasBlas(loaderCache)) {
    return { environment: {} };
  }
  const refusal = installPackages({ step: 'blas', packages: ['libopenblas0-pthread'] });
  if (hasBlas(loaderCache)) {
    return { environment: {} };
  }
  const reason = `no OpenBLAS was found, and apt was not used: ${refusal ?? 'it installed none'}`;
  announce('blas', `its tests will skip: ${reason}`);
  return { environment: { SHARDWEAVE_NO_BLAS: reason } };
}
