// Devices of one numeric class give equal bits for equal inputs. See docs/numerics.md.

import type { BackendInfo } from './backend.js';
import type { Device } from './device.js';
import type { View } from './view.js';

/**
 * The versions of the kernels of each kind of device, by which saves and ranks are compared. A
 * change of the bits that a kernel gives, such as the order of a sum or the place of a rounding,
 * must raise its kind's version. A test compares a hash of the cpu device's kernels; for WGSL it is
 * up to the author.
 */
export const KERNEL_VERSIONS: Readonly<Record<BackendInfo['kind'], number>> = {
  webgpu: 6,
  cpu: 4,
  reference: 2,
};

/** A number whose square lies in the middle of two f32, of which rounding takes the lower one. */
export const FUSE_FACTOR = 1 + 2 ** -12;
/**
 * The value of FUSE_FACTOR^2 - 1 where the product is rounded before the subtraction. Where both
 * are fused it is 2^-24 more.
 */
export const PLAIN_RESULT = 2 ** -11;

/**
 * Returns the numeric class of a device: its kind, the version of its kernels, what they are
 * compiled for, and whether they round a product before they add to it, in simple kernels and in
 * the sums of matrix products. WGSL's fma may do either, and so may WebAssembly's relaxed one. It
 * is up to the compiler, the driver and the hardware, so such kernels are run to find out, and the
 * device is waited for.
 */
export async function numericClassOf(device: Device): Promise<string> {
  const { kind, compiledFor } = device.backend.info;
  const adapter = compiledFor === '' ? '' : ` for ${compiledFor}`;
  const word = async (result: Promise<number>) =>
    (await result) === PLAIN_RESULT ? 'plain' : 'fused';
  const [products, sums] = [await word(affineResult(device)), await word(matmulResult(device))];
  return `${kind} kernels ${KERNEL_VERSIONS[kind]}${adapter}, products ${products}, matmul ${sums}`;
}

function affineResult(device: Device): Promise<number> {
  return firstOf(device, [[FUSE_FACTOR]], 1, ([x], out) => {
    device.backend.run('affine', { x: x!, out, scale: FUSE_FACTOR, shift: -1 });
  });
}

/** Returns the first of 4 x 4 results, since fewer rows may have a kernel of their own. */
function matmulResult(device: Device): Promise<number> {
  const size = 4;
  const row = [1, FUSE_FACTOR];
  const a = Array.from({ length: size }, () => row).flat();
  const b = [-1, FUSE_FACTOR].flatMap((value) => Array<number>(size).fill(value));
  const dense = { aRow: 2, bRow: size, outRow: size, batch: [1, 1] } as const;
  return firstOf(device, [a, b], size * size, ([left, right], out) => {
    device.backend.run('matmul', {
      ...dense,
      a: left!,
      b: right!,
      out,
      bias: undefined,
      m: size,
      n: size,
      k: 2,
      transposeA: false,
      transposeB: false,
      aBatch: [0, 0],
      bBatch: [0, 0],
      outBatch: [0, 0],
      alpha: 1,
      accumulate: false,
    });
  });
}

/** Returns the first of `count` results of a kernel over `inputs`. */
async function firstOf(
  device: Device,
  inputs: readonly (readonly number[])[],
  count: number,
  run: (inputs: readonly View[], out: View) => void,
): Promise<number> {
  const out = device.storage(count, 'f32', 'staging');
  const filled = inputs.map(({ length }) => device.storage(length, 'f32', 'staging'));
  try {
    out.fill();
    filled.forEach((storage, i) => {
      storage.fill();
      storage.write(new Uint8Array(Float32Array.from(inputs[i]!).buffer));
    });
    run(
      filled.map((storage) => storage.view()),
      out.view(),
    );
    return new Float32Array((await out.read()).slice().buffer)[0]!;
  } finally {
    for (const storage of [out, ...filled]) {
      storage.release();
    }
  }
}
