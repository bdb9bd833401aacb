// These tests run custom ops on every backend: values and gradients of the WGSL and of the
// JavaScript function, and how a device treats them.

import {
  add,
  affine,
  type Backend,
  cast,
  Device,
  defineOp,
  matmul,
  mul,
  ShaderError,
  sum,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { opCase } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { testedBackends } from './support/backends.js';
import { bucket, define, swish, turnRows } from './support/own-ops.js';

const SIZES = [1, 7, 63, 65, 1000];
const FLOATS = ['f32', 'f16', 'bf16'] as const;

const CASES = FLOATS.flatMap((dtype) => [
  ...SIZES.map((size) =>
    opCase(`swish ${dtype} [${size}]`, {
      dtype,
      inputs: [{ shape: [size], values: { low: -3, high: 3 } }],
      op: ([x]) => swish(x!, { beta: 1.5 }),
      twin: ([x]) => swish.plain({ x: x! }, { shape: x!.shape, params: { beta: 1.5 } }),
    }),
  ),
  opCase(`turnRows ${dtype}`, {
    dtype,
    roundings: 8, // The gradient multiplies the stored result.
    // The scales of the rows are 1. Otherwise the test could not know what to divide the result by
    // to get x.
    inputs: [{ shape: [3, 7] }, { shape: [3], values: [1, 1, 1] }],
    op: ([x, scale]) => turnRows({ x: x!, scale: scale! }, { cols: 7, by: 2 }),
    twin: ([x, scale]) =>
      turnRows.plain({ x: x!, scale: scale! }, { shape: [3, 7], params: { cols: 7, by: 2 } }),
  }),
]);

describe.each(await testedBackends())('custom ops on $name', ({ name, reason, open }) => {
  describe.skipIf(reason !== undefined)('of a device', () => {
    let backend: Backend;
    beforeAll(async () => {
      backend = await open();
    });
    afterAll(() => backend.dispose());

    test.each(CASES)('$name', async (one) => {
      const device = new Device(backend, { seed: 7 });
      await one.run(device);
      device.dispose();
      expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    });

    test('takes and returns integers, negative ones too', async () => {
      const device = new Device(backend);
      const x = device.tensor([-1.5, 0.5, 2.5, 7.25], [2, 2]);
      for (const dtype of ['i32', 'u32'] as const) {
        const y = bucket({ x, offset: device.tensor([3], [1], { dtype }) });
        expect([y.dtype, y.shape, await y.toArray()]).toEqual([
          'i32',
          [4],
          Int32Array.of(1, 3, 5, 10),
        ]);
      }
      device.dispose();
    });

    test('two ops of the same name are separate ops', async () => {
      const device = new Device(backend);
      const x = device.tensor([1, 2]);
      const double = define({
        wgsl: 'fn element(i: u32) -> f32 { return 2.0 * load_x(i); }',
        plain: (inputs, out) => out.data.set(inputs.x.data.map((value) => 2 * value)),
      });
      expect(await define({})(x).toArray()).toEqual(Float32Array.of(1, 2));
      expect(await double(x).toArray()).toEqual(Float32Array.of(2, 4));
      device.dispose();
    });

    test('f32 parameters are rounded to f32 for WGSL and JavaScript alike', async () => {
      const device = new Device(backend);
      const echo = defineOp({
        name: 'echo',
        inputs: { x: 'f32' },
        params: { p: 'f32', q: 'u32' },
        wgsl: 'fn element(i: u32) -> f32 { return select(P.p, f32(P.q >> 1u), i == 1u); }',
        plain: (_inputs, out, { p, q }) => {
          expect(p).toBe(Math.fround(0.1));
          out.data.set([p, Math.floor(q / 2)]);
        },
      });
      const y = echo(device.tensor([0, 0]), { p: 0.1, q: 2 ** 32 - 1 });
      expect(await y.toArray()).toEqual(Float32Array.of(0.1, 2 ** 31));
      device.dispose();
    });

    test('runs in order among much other work', async () => {
      const device = new Device(backend);
      // The ring of the cpu device holds 2,048 commands in all.
      const numBetween = name === 'cpu' ? 500 : 50;
      const x = device.tensor(new Float32Array(1000).fill(1));
      const scale = device.tensor(new Float32Array(10).fill(1));
      await device.scope(async () => {
        let y = x;
        for (let round = 0; round < 5; round++) {
          for (let i = 0; i < numBetween; i++) {
            y = affine(y, 1, 1);
          }
          // On devices with a queue, the input is freed and its room used again before this has
          // run.
          y = turnRows({ x: y, scale }, { cols: 1000, by: round });
          y = add(y, device.tensor(new Float32Array(1000).fill(round)));
        }
        expect(await y.toArray()).toEqual(new Float32Array(1000).fill(1 + 5 * numBetween + 10));
      });
      device.dispose();
    });

    test('is in the ledger, the scope and a dry run as any other op', async () => {
      const device = new Device(backend);
      const x = device.tensor(new Float32Array(1000), [1000], { requiresGrad: true });
      const step = () =>
        device.scope(async () => {
          await sum(swish(cast(x, 'bf16'), { beta: 2 })).backward();
          x.grad!.dispose();
          x.grad = undefined;
        });
      const before = device.memory().live.total;
      const dispatches = backend.dispatches;
      const { peakInUseBytes } = await device.dryRun(step);
      expect(backend.dispatches).toBe(dispatches);
      device.pool.resetPeak();
      const held = device.pool.inUseBytes;
      await step();
      expect(device.pool.peakInUseBytes - held).toBe(peakInUseBytes);
      expect(device.memory().live.total).toBe(before);
      device.dispose();
    });

    test('saves what it says, and frees it', async () => {
      const device = new Device(backend);
      const leaf = device.tensor(new Float32Array(64), [64], { requiresGrad: true });
      const saved: number[] = [];
      for (const keep of [[], ['x'], ['x', 'out']] as const) {
        const op = define({ saved: keep, gradient: ({ dy }) => ({ x: dy }) });
        await device.scope(() => {
          const stop = device.autograd.watchSaved(() => saved.push(keep.length));
          const y = op(leaf);
          stop();
          return y.backward({ gradient: device.full([64], 1) });
        });
      }
      expect(saved).toEqual([1, 2, 2]);
      device.dispose();
    });

    // WebGPU tells times only where the adapter has timestamps, and by the label of the shader.
    test.skipIf(name === 'webgpu')('is named in a trace', async () => {
      const device = new Device(backend);
      const names: string[] = [];
      await backend.sync();
      backend.trace((event) => names.push(event.name));
      await swish(device.tensor([1]), { beta: 1 }).toArray();
      backend.trace(undefined);
      expect(names.filter((one) => /^custom/.test(one))).toHaveLength(1);
      device.dispose();
    });

    test('a gradient that throws rejects backward with what it threw', async () => {
      const device = new Device(backend);
      const error = new RangeError('my own');
      const op = define({
        gradient: () => {
          throw error;
        },
      });
      const x = device.tensor([1], [1], { requiresGrad: true });
      await expect(device.scope(() => op(x).backward())).rejects.toBe(error);
      device.dispose();
    });

    test('a gradient function may be asynchronous', async () => {
      const device = new Device(backend);
      const op = define({
        gradient: async ({ dy }) => {
          await device.synchronize();
          return { x: mul(dy, 3) };
        },
      });
      const x = device.tensor([1], [1], { requiresGrad: true });
      await device.scope(() => op(x).backward());
      expect(await x.grad!.toArray()).toEqual(Float32Array.of(3));
      device.dispose();
    });

    test('an error in the shader or the JavaScript function rejects the next wait', async () => {
      const own = await open();
      const device = new Device(own);
      const error = new RangeError('my own');
      const op = define({
        name: 'crooked',
        wgsl: 'fn element(i: u32) -> f32 {\n  return load_y(i);\n}',
        plain: () => {
          throw error;
        },
      });
      const run = async () => {
        const y = op(affine(device.tensor([1]), 1, 0));
        return add(y, y).toArray();
      };
      if (name === 'webgpu') {
        const failure = (await run().catch((thrown) => thrown)) as ShaderError;
        expect(failure).toBeInstanceOf(ShaderError);
        expect(failure.label).toContain('custom crooked');
        const { line } = failure.messages.find(({ severity }) => severity === 'error')!;
        expect(failure.source.split('\n')[line - 1]).toBe('  return load_y(i);');
      } else {
        await expect(run()).rejects.toBe(error);
      }
      device.dispose();
      await own.dispose();
    });
  });
});

describe('the cpu device', () => {
  test.each([0, 1, 2])(
    '%i threads: work behind a twin waits for it, and reads see it',
    async (threads) => {
      const backend = await createCpuBackend({ threads });
      const device = new Device(backend);
      const order: string[] = [];
      const op = define({
        plain: ({ x }, out) => {
          order.push(`twin of ${x.data[0]}`);
          out.data[0] = x.data[0]! + 1;
        },
      });
      const x = device.tensor([0]);
      // The input of the JavaScript function depends on milliseconds of work, which threads have
      // not finished when its turn comes.
      const square = device.full([400, 400], 1);
      const late = () => affine(sum(matmul(square, square)), 0, 0);
      const reads: Promise<unknown>[] = [];
      for (let i = 0; i < 3; i++) {
        x.storage.write(new Uint8Array(Float32Array.of(10 * i).buffer));
        const y = affine(op(add(x, late())), 2, 0);
        reads.push(y.item().then((value) => order.push(`read ${value}`)));
      }
      await Promise.all(reads);
      await device.synchronize();
      expect(order.filter((line) => line.startsWith('twin'))).toEqual(
        [0, 10, 20].map((v) => `twin of ${v}`),
      );
      expect(order.filter((line) => line.startsWith('read'))).toEqual(
        [2, 22, 42].map((v) => `read ${v}`),
      );
      device.dispose();
      await backend.dispose();
    },
  );
});
