// Norms of gradients other than the 2-norm, which has kernels of its own: the largest magnitude, and
// sums of powers. For gradients wherever they rest.

import { type Device, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { flatsOf } from './flat-plan.js';
import { eachGradient } from './streamed-grad-norm.js';

/** Elements worked on at once: 4 MiB of scratch memory on the device. */
const RUN_ELEMENTS = 2 ** 20;
/** One result each 256 bytes, where bindings may start. */
const SLOT_ELEMENTS = 64;

/**
 * The largest magnitude of all gradients (normType Infinity), or the sum of their magnitudes to the
 * power normType; 0 without gradients, NaN where one is. Sums of a run are f32, over runs f64. Waits
 * for the device.
 * @throws {NnConfigError} for a normType that is not above 0
 */
export async function streamedGradPower(
  parameters: Iterable<Tensor>,
  normType: number,
): Promise<number> {
  if (!(normType > 0)) {
    throw new NnConfigError(`gradient norm: expected normType above 0, got ${normType}.`);
  }
  const list = [...parameters];
  const runs = flatsOf(list).reduce((sum, { size }) => sum + Math.ceil(size / RUN_ELEMENTS), 0);
  const [first] = list;
  if (first === undefined || runs === 0) {
    return 0;
  }
  const { device } = first;
  const bytes = await device.scope(async () => {
    const slots = device.zeros([runs * SLOT_ELEMENTS]);
    let slot = 0;
    const use = (gradient: Tensor) => {
      for (let start = 0; start < gradient.size; start += RUN_ELEMENTS) {
        const size = Math.min(RUN_ELEMENTS, gradient.size - start);
        const run = new Tensor(gradient.storage, [size], gradient.offset + start);
        const out = new Tensor(slots.storage, [1], SLOT_ELEMENTS * slot++);
        reduceRun(device, run, { out, normType });
      }
    };
    await eachGradient(list, { isChanging: false, use });
    return slots.toBytes();
  });
  const values = new Float32Array(bytes.slice().buffer);
  const results = Array.from({ length: runs }, (_, i) => values[SLOT_ELEMENTS * i]!);
  const isMax = normType === Number.POSITIVE_INFINITY;
  return isMax ? Math.max(...results) : results.reduce((sum, value) => sum + value, 0);
}

function reduceRun(
  device: Device,
  run: Tensor,
  { out, normType }: { readonly out: Tensor; readonly normType: number },
): void {
  const { backend } = device;
  const isMax = normType === Number.POSITIVE_INFINITY;
  const scratch = device.storage(run.size, 'f32', 'staging');
  const exponent = device.storage(1, 'f32', 'staging');
  scratch.fill();
  exponent.fill();
  const x = scratch.view();
  backend.run('unary', { kind: 'abs', x: run.view(), out: x });
  if (!isMax && normType !== 1) {
    backend.run('fill', { out: exponent.view(), value: normType });
    const strides = { shape: [run.size], aStrides: [1], bStrides: [0] };
    backend.run('binary', { kind: 'pow', a: x, b: exponent.view(), out: x, ...strides });
  }
  const kind = isMax ? 'max' : 'sum';
  backend.run('reduce', { kind, x, out: out.view(), outer: 1, dim: run.size, inner: 1 });
  scratch.release();
  exponent.release();
}
