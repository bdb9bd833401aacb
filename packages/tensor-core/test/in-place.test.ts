// Calls that write to a tensor in place look at dtype, shape, device and memory before anything
// reaches a backend, so a wrong one is a typed error on every device, which works on afterwards.

import {
  type Backend,
  cast,
  Device,
  drawNormal,
  drawUniform,
  reshape,
  slice,
  type Tensor,
  TensorError,
  type TensorErrorCode,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { testedBackends } from './support/backends.js';

type Call = (device: Device, other: Device) => void;

const range = (device: Device, count: number) =>
  device.tensor(Array.from({ length: count }, (_, i) => i));
const half = (device: Device, count: number) => cast(range(device, count), 'f16');
const i32 = (device: Device, ...values: number[]) =>
  device.tensor(values, [values.length], { dtype: 'i32' });
const part = (x: Tensor, start: number, end: number) => slice(x, { axis: 0, start, end });

/** The calls that must throw, with the code and the message. */
const WRONG: readonly (readonly [call: Call, code: TensorErrorCode, message: RegExp])[] = [
  [
    (d) => d.addInPlace(range(d, 2), i32(d, 1, 2)),
    'DTYPE',
    /addInPlace: .*f32 \[2\] and i32 \[2\]/,
  ],
  [
    (d) => d.addInPlace(i32(d, 1, 2), range(d, 2)),
    'DTYPE',
    /addInPlace: .*i32 \[2\] and f32 \[2\]/,
  ],
  [(d) => d.addInPlace(i32(d, 1), cast(i32(d, 1), 'u32')), 'DTYPE', /i32 \[1\] and u32 \[1\]/],
  [
    (d) => d.addInPlace(reshape(range(d, 6), [2, 3]), reshape(range(d, 6), [3, 2])),
    'SHAPE',
    /addInPlace: .*one shape, got \[2, 3\] and \[3, 2\]/,
  ],
  [
    (d) => d.copyInto(reshape(range(d, 6), [2, 3]), range(d, 6)),
    'SHAPE',
    /copyInto: .*one shape, got \[2, 3\] and \[6\]/,
  ],
  [(d) => d.addInPlace(range(d, 3), range(d, 1)), 'SHAPE', /one shape, got \[3\] and \[1\]/],
  [(d, o) => d.addInPlace(range(d, 2), range(o, 2)), 'SHAPE', /addInPlace: .*one device/],
  [(d, o) => d.copyInto(range(d, 2), range(o, 2)), 'SHAPE', /copyInto: .*one device/],
  [
    (d) => {
      const x = range(d, 6);
      d.addInPlace(part(x, 0, 4), part(x, 2, 6));
    },
    'SHAPE',
    /addInPlace: .*apart from the target, got elements from 2 and from 0 on, 4 each/,
  ],
  [
    (d) => {
      const x = range(d, 6);
      d.copyInto(part(x, 1, 6), part(x, 0, 5));
    },
    'SHAPE',
    /copyInto: .*apart from the target/,
  ],
  [(d) => d.addInPlace(part(half(d, 6), 1, 3), half(d, 2)), 'SHAPE', /whole 32-bit words/],
  [
    (d) => drawUniform(part(half(d, 6), 1, 3), { key: { key0: 1, key1: 2 } }),
    'SHAPE',
    /whole 32-bit words/,
  ],
  [
    (d) => drawNormal(i32(d, 1, 2), { key: { key0: 1, key1: 2 } }),
    'DTYPE',
    /float tensor.*i32 \[2\]/,
  ],
];

describe.each(await testedBackends())('writes in place on $name', ({ reason, open }) => {
  describe.skipIf(reason !== undefined)('of one backend', () => {
    let backend: Backend;
    let device: Device;
    const other = new Device(createReferenceBackend());
    beforeAll(async () => {
      backend = await open();
      device = new Device(backend);
    });
    afterAll(() => backend.dispose());

    test('what does not fit is refused, changes nothing, and the device works on', async () => {
      for (const [call, code, message] of WRONG) {
        let error: unknown;
        device.scope(() => {
          other.scope(() => {
            try {
              call(device, other);
            } catch (caught) {
              error = caught;
            }
          });
        });
        expect(error, `${call}`).toBeInstanceOf(TensorError);
        expect((error as TensorError).code).toBe(code);
        expect((error as Error).message).toMatch(message);
      }
      await device.scope(async () => {
        const x = range(device, 3);
        device.addInPlace(x, x);
        expect(await x.toArray()).toEqual(new Float32Array([0, 2, 4]));
      });
      expect(device.memory().live.total).toBe(0);
    });

    test("floats of two dtypes are added in the target's, integers as they are", async () => {
      await device.scope(async () => {
        const x = half(device, 3);
        device.addInPlace(x, device.tensor([0.5, 1 / 3, 2 ** -12]));
        expect(await x.toArray()).toEqual(new Float32Array([0.5, 1365 / 1024, 2]));
        const n = i32(device, 2 ** 31 - 1, -5);
        device.addInPlace(n, i32(device, 1, 2));
        expect(await n.toArray()).toEqual(new Int32Array([-(2 ** 31), -3]));
      });
    });

    test('copies convert as casts do, between parts of one tensor too, and onto itself', async () => {
      await device.scope(async () => {
        const n = i32(device, 7, 7, 7);
        device.copyInto(n, device.tensor([1.9, -1.9, Number.NaN]));
        expect(await n.toArray()).toEqual(new Int32Array([1, -1, 0]));
        const x = range(device, 6);
        device.copyInto(part(x, 0, 3), part(x, 3, 6));
        device.copyInto(x, x);
        expect(await x.toArray()).toEqual(new Float32Array([3, 4, 5, 3, 4, 5]));
      });
    });
  });
});
