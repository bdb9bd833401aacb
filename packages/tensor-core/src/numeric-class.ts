// Which devices give equal bits for equal inputs: those of one numeric class. See docs/numerics.md.

import type { BackendInfo } from './backend.js';
import type { Device } from './device.js';

/**
 * Versions of the kernels of each kind of device. Whoever changes the bits that a kernel gives, the
 * order of a sum or where it rounds, raises its kind's: saves and ranks are compared by it. Those of
 * the cpu device are held to a hash in the tests; of WGSL only its author knows.
 */
export const KERNEL_VERSIONS: Readonly<Record<BackendInfo['kind'], number>> = {
  webgpu: 1,
  cpu: 1,
  reference: 1,
};

/** 2^-12 more than 1: its square lies in the middle of two f32s, and rounding takes the lower one. */
const FACTOR = 1 + 2 ** -12;

/**
 * The numeric class of a device: kind, version of its kernels, what they are compiled for, and whether a
 * product that is added to something is rounded before. That is in no specification (WGSL's fma may do
 * either) but up to compiler, driver and hardware, so a kernel that does it is run. Waits for the device.
 */
export async function numericClassOf(device: Device): Promise<string> {
  const { kind, compiledFor } = device.backend.info;
  const adapter = compiledFor === '' ? '' : ` for ${compiledFor}`;
  const products = (await isFused(device)) ? 'fused' : 'plain';
  return `${kind} kernels ${KERNEL_VERSIONS[kind]}${adapter}, products ${products}`;
}

/** FACTOR^2 - 1 is 2^-11 where the product was rounded, and 2^-24 more where it was not. */
async function isFused(device: Device): Promise<boolean> {
  const [x, out] = [device.storage(1, 'f32', 'staging'), device.storage(1, 'f32', 'staging')];
  try {
    x.fill();
    out.fill();
    x.write(new Uint8Array(Float32Array.of(FACTOR).buffer));
    device.backend.run('affine', { x: x.view(), out: out.view(), scale: FACTOR, shift: -1 });
    const [result] = new Float32Array((await out.read()).slice().buffer);
    return result !== 2 ** -11;
  } finally {
    x.release();
    out.release();
  }
}
