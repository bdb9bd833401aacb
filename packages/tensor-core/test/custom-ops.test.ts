// Ops of a user's own on every backend: values and gradients of both texts, and what a wrong one does.

import {
  add,
  affine,
  type Backend,
  type CustomOp,
  type CustomOpSpec,
  cast,
  Device,
  DTypeError,
  defineOp,
  GraphError,
  mul,
  OptionError,
  ShaderError,
  ShapeError,
  sum,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend, opCase } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { testedBackends } from './backends.js';

const SIZES = [1, 7, 63, 65, 1000];
const FLOATS = ['f32', 'f16', 'bf16'] as const;

const swishGradient = defineOp({
  name: 'swishGradient',
  inputs: { x: 'float', dy: 'float' },
  params: { beta: 'f32' },
  wgsl: `fn element(i: u32) -> f32 {
    let x = load_x(i);
    let s = 1.0 / (1.0 + exp(-P.beta * x));
    return load_dy(i) * s * (1.0 + P.beta * x * (1.0 - s));
  }`,
  plain: ({ x, dy }, out, { beta }) => {
    out.data.forEach((_, i) => {
      const s = 1 / (1 + Math.exp(-beta * x.data[i]!));
      out.data[i] = dy.data[i]! * s * (1 + beta * x.data[i]! * (1 - s));
    });
  },
});

const swish = defineOp({
  name: 'swish',
  inputs: { x: 'float' },
  params: { beta: 'f32' },
  wgsl: `fn sigmoid_of(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }
  fn element(i: u32) -> f32 { let x = load_x(i); return x * sigmoid_of(P.beta * x); }`,
  plain: ({ x }, out, { beta }) => {
    x.data.forEach((value, i) => {
      out.data[i] = value / (1 + Math.exp(-beta * value));
    });
  },
  gradient: ({ inputs: { x }, dy, params }) => ({ x: swishGradient({ x, dy }, params) }),
});

/** Reads any element of its inputs: out[r, c] = x[r, (c + by) mod cols] * scale[r]. */
const turnRows: CustomOp<'x' | 'scale', 'cols' | 'by'> = defineOp({
  name: 'turnRows',
  inputs: { x: 'float', scale: 'float' },
  params: { cols: 'u32', by: 'u32' },
  wgsl: `fn element(i: u32) -> f32 {
    let row = i / P.cols;
    return load_x(row * P.cols + (i % P.cols + P.by) % P.cols) * load_scale(min(row, P.scale_size - 1u));
  }`,
  plain: ({ x, scale }, out, { cols, by }) => {
    out.data.forEach((_, i) => {
      const row = Math.floor(i / cols);
      out.data[i] = x.data[row * cols + ((i + by) % cols)]! * scale.data[row]!;
    });
  },
  saved: ['scale', 'out'],
  gradient: ({ inputs: { scale }, out, dy, params: { cols, by } }) => ({
    x: turnRows({ x: dy, scale }, { cols, by: (cols - by) % cols }),
    scale: sum(mul(out!, dy), { axis: 1 }),
  }),
});

/** Integers in and out. */
const bucket = defineOp({
  name: 'bucket',
  inputs: { x: 'f32', offset: 'integer' },
  output: ({ x }) => ({ shape: [x.size], dtype: 'i32' }),
  wgsl: 'fn element(i: u32) -> i32 { return i32(floor(load_x(i))) + i32(load_offset(0u)); }',
  plain: ({ x, offset }, out) => {
    x.data.forEach((value, i) => {
      out.data[i] = Math.floor(value) + offset.data[0]!;
    });
  },
});

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
    roundings: 8, // its gradient multiplies the stored result
    // The rows' scales are 1, or what the result is divided by to get x would not be known.
    inputs: [{ shape: [3, 7] }, { shape: [3], values: [1, 1, 1] }],
    op: ([x, scale]) => turnRows({ x: x!, scale: scale! }, { cols: 7, by: 2 }),
    twin: ([x, scale]) =>
      turnRows.plain({ x: x!, scale: scale! }, { shape: [3, 7], params: { cols: 7, by: 2 } }),
  }),
]);

/** An op whose parts a test replaces. */
function define(
  parts: { [K in keyof CustomOpSpec<'x', never>]?: CustomOpSpec<'x', never>[K] | undefined },
) {
  return defineOp<'x'>({
    name: 'broken',
    inputs: { x: 'float' },
    wgsl: 'fn element(i: u32) -> f32 { return load_x(i); }',
    plain: ({ x }, out) => out.data.set(x.data),
    gradient: ({ dy }) => ({ x: dy }),
    ...parts,
  } as CustomOpSpec<'x', never>);
}

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

    test('integers in and out, and negative ones', async () => {
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

    test('two ops of one name are two', async () => {
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

    test('parameters are f32 in both texts', async () => {
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

    test('takes its place among other work, of which there is much', async () => {
      const device = new Device(backend);
      const numBetween = name === 'cpu' ? 500 : 50; // the cpu device's ring holds 2,048 in all
      const x = device.tensor(new Float32Array(1000).fill(1));
      const scale = device.tensor(new Float32Array(10).fill(1));
      await device.scope(async () => {
        let y = x;
        for (let round = 0; round < 5; round++) {
          for (let i = 0; i < numBetween; i++) {
            y = affine(y, 1, 1);
          }
          // Its input is freed, and the room used again, before it has run on devices with a queue.
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
          const stop = device.watchSaved(() => saved.push(keep.length));
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

    test('a gradient may wait', async () => {
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

    test('a text that fails reaches who waits next', async () => {
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
      const reads: Promise<unknown>[] = [];
      for (let i = 0; i < 3; i++) {
        x.storage.write(new Uint8Array(Float32Array.of(10 * i).buffer));
        const y = affine(op(affine(x, 1, 0)), 2, 0);
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

describe('a wrong definition or call', () => {
  const device = new Device(createReferenceBackend());
  const other = new Device(createReferenceBackend());
  const x = device.tensor([1, 2]);
  const call = swish as unknown as (...args: unknown[]) => unknown;

  test.each([
    ['an unknown option', { outputs: 1 }, "defineOp: expected known options, got 'outputs'"],
    ['no twin', { plain: undefined }, 'defineOp: expected plain to be a function, got nothing'],
    ['no input', { inputs: {} }, "defineOp 'broken': expected the number of inputs"],
    [
      'an unknown kind',
      { inputs: { x: 'f64' } },
      "defineOp 'broken': expected inputs.x to be one of",
    ],
    [
      'a taken name',
      { inputs: { out: 'f32' } },
      "defineOp 'broken': expected the name of an input",
    ],
    ['a param that is no word', { params: { 'a-b': 'f32' } }, 'expected the name of a param'],
    ['a param of an unknown type', { params: { a: 'f16' } }, 'expected params.a to be one of'],
    [
      'saving what there is not',
      { saved: ['y'] },
      'expected what is saved to be one of "x", "out"',
    ],
  ])('%s', (_, parts, message) => {
    const attempt = () => define(parts as Partial<CustomOpSpec<'x', never>>);
    expect(attempt).toThrow(OptionError);
    expect(attempt).toThrow(message);
  });

  test.each([
    [
      'a missing param',
      OptionError,
      () => call(x),
      'swish: expected beta to be a number, got nothing',
    ],
    ['an unknown param', OptionError, () => call(x, { beta: 1, alpha: 1 }), "got 'alpha'"],
    [
      'no tensor',
      OptionError,
      () => call({ x: 1 }, { beta: 1 }),
      'swish: expected x to be a tensor',
    ],
    ['an unknown input', OptionError, () => call({ y: x }, { beta: 1 }), "got 'y'"],
    [
      'a u32 that is none',
      OptionError,
      () => turnRows({ x, scale: x }, { cols: 2, by: -1 }),
      'turnRows: expected by to be a whole number below 2^32, got -1',
    ],
    [
      'integers',
      DTypeError,
      () => swish(cast(x, 'i32'), { beta: 1 }),
      'swish: expected a float tensor',
    ],
    [
      'another float',
      DTypeError,
      () => bucket({ x: cast(x, 'f16'), offset: cast(x, 'i32') }),
      'bucket: expected x to be f32, got f16 [2]',
    ],
    [
      'two devices',
      ShapeError,
      () => turnRows({ x, scale: other.tensor([1]) }, { cols: 1, by: 0 }),
      'turnRows: expected tensors of one device',
    ],
    [
      'an input without elements',
      ShapeError,
      () => turnRows({ x, scale: device.empty([0]) }, { cols: 1, by: 0 }),
      'turnRows: expected inputs with elements',
    ],
  ] as const)('%s', (_, type, attempt, message) => {
    expect(attempt).toThrow(type);
    expect(attempt).toThrow(message);
  });

  test('no gradient: backward says so, and not the forward', async () => {
    const leaf = device.tensor([1], [1], { requiresGrad: true });
    const y = define({ gradient: undefined })(leaf);
    await expect(y.backward()).rejects.toThrow(GraphError);
    await expect(define({ gradient: undefined })(leaf).backward()).rejects.toThrow("'broken'");
  });

  test.each([
    ['another shape', GraphError, () => ({ x: device.zeros([3]) }), 'of shape [2], got [3]'],
    ['no input of its own', OptionError, () => ({ y: x }), "got 'y'"],
    ['no tensor', OptionError, () => ({ x: 1 }), 'gradient of broken: expected x to be a tensor'],
  ])('a gradient of %s', async (_, type, gradient, message) => {
    const leaf = device.tensor([1, 2], [2], { requiresGrad: true });
    const op = define({ gradient: gradient as never });
    const attempt = device.scope(() => op(leaf).backward({ gradient: device.full([2], 1) }));
    await expect(attempt).rejects.toBeInstanceOf(type);
    await expect(attempt).rejects.toThrow(message);
  });
});
