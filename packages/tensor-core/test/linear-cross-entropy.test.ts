// linearCrossEntropy is compared with matmul and crossEntropy: its values, its special values, the
// work that it leaves out and its memory.

import {
  type CrossEntropyOptions,
  cast,
  createDryBackend,
  crossEntropy,
  Device,
  DTypeError,
  div,
  type KernelCalls,
  type LinearCrossEntropyOptions,
  linearCrossEntropy,
  linearCrossEntropyPart,
  matmul,
  mul,
  OptionError,
  ShapeError,
  type Tensor,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, onTestFinished, test } from 'vitest';
import { testedBackends } from './support/backends.js';

const [ROWS, CLASSES, DIM] = [70, 600, 17];
/** With this many bytes the 70 rows go in chunks of 9, and the 600 classes in chunks of 64. */
const CHUNK_BYTES = 4 * CLASSES * 9;

type Loss = (x: Tensor, targets: Tensor, weight: Tensor) => Tensor;
type Special = readonly [row: number, value: number];

const plain: Loss = (x, targets, weight) =>
  crossEntropy(matmul(x, weight, { transposeB: true }), targets);
const chunked =
  (chunkBytes?: number): Loss =>
  (x, targets, weight) =>
    linearCrossEntropy(x, targets, { weight, ...(chunkBytes === undefined ? {} : { chunkBytes }) });

interface Options {
  readonly dtype?: 'f32' | 'f16' | 'bf16';
  /** If true, the weight needs no gradient, and its gradient in the results is empty. */
  readonly isFrozen?: boolean;
  /**
   * The factor of the loss before backward, by which x's gradient is divided afterwards. The
   * default is 1.
   */
  readonly lossScale?: number;
  /** A value for the element in the middle of one row, of x or of the weight. */
  readonly inX?: Special;
  readonly inWeight?: Special;
}

/** Returns the loss, the gradient of x and that of the weight. */
function results(device: Device, loss: Loss, options: Options = {}): Promise<Float32Array[]> {
  const { dtype = 'f32', isFrozen = false, lossScale = 1, inX, inWeight } = options;
  return device.scope(async () => {
    const leaf = (rows: number, scale: number, special: Special | undefined, isTrained = true) => {
      const values = Float32Array.from({ length: rows * DIM }, (_, i) => scale * Math.sin(i * i));
      if (special !== undefined) {
        values[special[0] * DIM + 16] = special[1];
      }
      return device.tensor(values, [rows, DIM], { dtype, requiresGrad: isTrained });
    };
    // The logits are about 1. With logits of 100, the rounding of f32 itself would be 1e-5 of a
    // probability.
    const [x, weight] = [leaf(ROWS, 1, inX), leaf(CLASSES, 0.5, inWeight, !isFrozen)];
    const ids = Int32Array.from({ length: ROWS }, (_, i) => (i % 7 === 3 ? -100 : i * 8));
    const value = loss(x, device.tensor(ids), weight);
    await mul(value, lossScale).backward();
    const dx = div(cast(x.grad!, 'f32'), lossScale);
    const found = await Promise.all(
      [value, dx, weight.grad].map((each) => each?.toArray() ?? new Float32Array()),
    );
    x.grad!.dispose();
    weight.grad?.dispose();
    return found as Float32Array[];
  });
}

/**
 * Finite values must lie within `share` of the largest one, and NaN and infinities must be equal.
 */
function expectClose(
  found: readonly Float32Array[],
  wanted: readonly Float32Array[],
  share: number,
): void {
  found.forEach((values, i) => {
    const finite = wanted[i]!.filter(Number.isFinite);
    const largest = finite.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const isWrong = (value: number, j: number) => {
      const want = wanted[i]![j]!;
      return Number.isFinite(want)
        ? !(Math.abs(value - want) <= share * largest)
        : !Object.is(value, want);
    };
    expect({ output: i, first: values.findIndex(isWrong) }).toEqual({ output: i, first: -1 });
  });
}

const BACKENDS = await testedBackends();

describe.each(BACKENDS)('linearCrossEntropy on $name', ({ reason, open }) => {
  const opened = async (): Promise<Device> => {
    const backend = await open();
    onTestFinished(() => backend.dispose());
    return new Device(backend);
  };

  test.skipIf(reason !== undefined)('is matmul and crossEntropy, in chunks and whole', async () => {
    const device = await opened();
    // The plain loss of a device may be further from float64 than sums by chunks are: 2e-6 on
    // WebGPU.
    const exact = await results(new Device(createReferenceBackend()), plain);
    expectClose(await results(device, chunked(CHUNK_BYTES)), exact, 1e-6);
    expect(await results(device, chunked())).toEqual(await results(device, plain));
    expect(device.memory().live.total).toBe(0);
  });

  test.skipIf(reason !== undefined)(
    'a mean, as that of crossEntropy, is over the targets that count, or over all',
    async () => {
      const device = await opened();
      await device.scope(async () => {
        // All logits are 0, so each of the three targets that count has the loss log(2).
        const x = device.zeros([2, 3, 1]);
        const weight = device.zeros([2, 1]);
        const logits = device.zeros([2, 3, 2], { requiresGrad: true });
        const both = async (ids: number[], options: CrossEntropyOptions = {}) => {
          const targets = device.tensor(ids, [2, 3], { dtype: 'i32' });
          const loss = crossEntropy(logits, targets, options);
          const other = linearCrossEntropy(x, targets, { weight, ...options });
          expect(await other.item()).toBe(await loss.item());
          await loss.backward();
          const slopes = Array.from(await logits.grad!.toArray());
          logits.grad!.dispose();
          logits.grad = undefined;
          return { loss: await loss.item(), slopes };
        };
        const some = [0, -100, 1, 2, -1, 0];
        const counted = await both(some);
        expect(counted.loss).toBeCloseTo(Math.log(2), 6);
        const sixth = [-1, 1, 0, 0, 1, -1, 0, 0, 0, 0, -1, 1].map((sign) => sign / 6);
        expect(counted.slopes).toEqual(sixth.map((slope) => expect.closeTo(slope, 6)));
        const all = await both(some, { divisor: 'all' });
        expect(all.loss).toBeCloseTo(Math.log(2) / 2, 6);
        expect(all.slopes).toEqual(sixth.map((slope) => expect.closeTo(slope / 2, 6)));
        const none = [-100, -100, 2, 2, 3, -1];
        expect((await both(none)).loss).toBe(Number.NaN);
        expect((await both(none, { reduction: 'sum' })).slopes).toEqual(Array(12).fill(0));
        expect((await both(none, { divisor: 'all' })).loss).toBe(0);
      });
      expect(device.memory().live.total).toBe(0);
    },
  );

  test.skipIf(reason !== undefined)('is the same beside a frozen weight', async () => {
    const device = await opened();
    const reference = new Device(createReferenceBackend());
    const isFrozen = true;
    const exact = await results(reference, plain, { isFrozen });
    expect(exact[2]).toHaveLength(0);
    // The rows go in chunks of 64 and 6 (64 are the fewest that forward takes at once) and then in
    // one chunk. A row is one sum over all classes, as in the plain loss, so it is 2e-6 from
    // float64 on WebGPU.
    expectClose(await results(device, chunked(CHUNK_BYTES), { isFrozen }), exact, 2e-6);
    expectClose(await results(device, chunked(), { isFrozen }), exact, 2e-6);
    // In f16 a scale of 2^12 preserves gradients below 2^-24, which here are all of them.
    const small = { isFrozen, dtype: 'f16', lossScale: 2 ** 12 } as const;
    const wanted = await results(reference, plain, small);
    const found = await results(device, chunked(CHUNK_BYTES), small);
    expectClose(found, wanted, 2 ** -9);
  });

  test.skipIf(reason !== undefined)('has the NaN and infinities of the plain one', async () => {
    const device = await opened();
    const specials: Options[] = [
      { inX: [5, Number.NaN] },
      { inX: [3, Number.NaN] }, // Row 3 is ignored.
      { inX: [69, Number.POSITIVE_INFINITY] },
      { inWeight: [70, Number.NaN] },
      { inWeight: [599, Number.NEGATIVE_INFINITY] },
    ];
    for (const special of specials) {
      const wanted = await results(device, plain, special);
      expect(wanted.some((values) => values.some(Number.isNaN))).toBe(true);
      expectClose(await results(device, chunked(CHUNK_BYTES), special), wanted, 4e-6);
      const frozen = { ...special, isFrozen: true };
      const ofInput = await results(device, plain, frozen);
      expectClose(await results(device, chunked(CHUNK_BYTES), frozen), ofInput, 4e-6);
    }
  });

  test.skipIf(reason !== undefined).each([
    { dtype: 'f32', rows: 2048, dim: 64 },
    // Here the sum of dx in f32 would be 28 MiB.
    { dtype: 'bf16', rows: 8192, dim: 896 },
  ] as const)(
    'takes at most 16 MiB beside inputs and gradients: $dtype, $rows rows of $dim',
    async ({ dtype, rows, dim }) => {
      const backend = await open();
      onTestFinished(() => backend.dispose());
      const { info, planScratch } = backend;
      // All logits at once would be more than most devices have in one buffer.
      const limits = { ...info.limits, maxBufferBytes: 2 ** 40 };
      const device = new Device(
        createDryBackend({
          info: { ...info, limits },
          ...(planScratch && { planScratch: planScratch.bind(backend) }),
        }),
      );
      await device.scope(async () => {
        const leaf = { requiresGrad: true, dtype };
        const x = device.empty([rows, dim], leaf);
        const weight = device.empty([151_936, dim], leaf);
        const targets = device.empty([rows], { dtype: 'i32' });
        const gradientBytes = x.storage.byteLength + weight.storage.byteLength;
        const besides = async (loss: Loss) => {
          device.ledger.resetPeak();
          const before = device.memory().live.total;
          await device.scope(() => loss(x, targets, weight).backward());
          for (const tensor of [x, weight]) {
            tensor.grad!.dispose();
            tensor.grad = undefined;
          }
          return device.memory().peak.total - before - gradientBytes;
        };
        expect(await besides(chunked())).toBeLessThanOrEqual(16 * 2 ** 20);
        expect(await besides(plain)).toBeGreaterThan(2 ** 30);
      });
    },
  );
});

describe('linearCrossEntropy', () => {
  const make = () => {
    const backend = createReferenceBackend();
    const device = new Device(backend);
    const products: string[] = [];
    const { run } = backend;
    backend.run = (kernel, call) => {
      if (kernel === 'matmul') {
        products.push(kernel);
      }
      run.call(backend, kernel, call);
    };
    const tensors = (needs: readonly [x: boolean, weight: boolean]) => ({
      x: device.full([2, 3], 0.5, { requiresGrad: needs[0] }),
      weight: device.full([65, 3], 0.25, { requiresGrad: needs[1] }),
      targets: device.tensor(Int32Array.of(64, 2)),
    });
    return { device, products, tensors };
  };

  test.each([
    // Forward makes one row at a time, and backward 64 classes and then 1.
    { needs: [true, true], inForward: 2, inBackward: 2 * 3 },
    { needs: [false, true], inForward: 2, inBackward: 2 * 2 },
    // Forward makes the logits and dx of both rows, and backward makes neither again.
    { needs: [true, false], inForward: 2, inBackward: 0 },
  ] as const)('makes no gradient that nobody needs: $needs', async (expected) => {
    const { needs, inForward, inBackward } = expected;
    const { products, tensors } = make();
    const { x, weight, targets } = tensors(needs);
    const loss = linearCrossEntropy(x, targets, { weight, chunkBytes: 1 });
    expect(products).toHaveLength(inForward);
    await loss.backward();
    expect(products).toHaveLength(inForward + inBackward);
    expect([x.grad, weight.grad].map((gradient) => gradient !== undefined)).toEqual(needs);
  });

  test('16-bit gradients are rounded once, whatever the chunks are', async () => {
    const device = new Device(createReferenceBackend());
    const [loss, dx, dWeight] = await results(device, chunked(), { dtype: 'bf16' });
    const inChunks = await results(device, chunked(CHUNK_BYTES), { dtype: 'bf16' });
    expect(inChunks[0]).toEqual(loss);
    expect(inChunks[2]).toEqual(dWeight);
    // The gradient of the input is a sum in f32, whose last bits may decide a few roundings to 8
    // bits.
    const numOther = inChunks[1]!.filter((value, i) => value !== dx![i]).length;
    expect(numOther).toBeLessThan(0.01 * dx!.length);
  });

  test('is outside the graph where neither operand needs a gradient', () => {
    const { tensors } = make();
    const { x, weight, targets } = tensors([false, false]);
    expect(linearCrossEntropy(x, targets, { weight }).requiresGrad).toBe(false);
  });

  test("multiplies a frozen head's gradient by each row's own, twice where the graph is kept", async () => {
    const { device, tensors } = make();
    const { x, weight, targets } = tensors([true, false]);
    const losses = linearCrossEntropy(x, targets, { weight, reduction: 'none' });
    const gradientOf = async (each: number[]) => {
      await losses.backward({ gradient: device.tensor(each), retainGraph: true });
      const values = Array.from(await x.grad!.toArray());
      x.grad!.dispose();
      x.grad = undefined;
      return values;
    };
    const [a, b] = [await gradientOf([1, 0]), await gradientOf([4, -2])];
    expect(a.slice(3).every((value) => value === 0)).toBe(true);
    expect(b.slice(0, 3)).toEqual(a.slice(0, 3).map((value) => 4 * value));
    const row = await linearCrossEntropy(x, targets, { weight, reduction: 'none' }).toArray();
    expect(row[1]).toBeCloseTo(Math.log(65), 5);
    expect(b.slice(3).every((value) => value !== 0)).toBe(true);
  });

  test('holds a frozen head to an f32 gradient of its input, and to 48 MiB of logits', async () => {
    const backend = createReferenceBackend();
    const device = new Device(createDryBackend({ info: backend.info }));
    await device.scope(async () => {
      const x = device.empty([512, 64], { requiresGrad: true, dtype: 'bf16' });
      const weight = device.empty([151_936, 64], { dtype: 'bf16' });
      const targets = device.empty([512], { dtype: 'i32' });
      device.ledger.resetPeak();
      const before = device.memory().live.total;
      const loss = linearCrossEntropy(x, targets, { weight });
      const held = device.memory().live.total - before;
      expect(held).toBe(4 * 512 * 64 + 8); // The loss is held, too, and the number that it counts.
      const chunkBytes = 48 * 2 ** 20; // A chunk then has 82 rows.
      expect(device.memory().peak.total - before).toBeLessThan(held + chunkBytes + 8192);
      await loss.backward();
    });
  });

  test("writes the weight's gradient where its sink has a place for it", async () => {
    const { device, tensors } = make();
    const { x, weight, targets } = tensors([true, true]);
    const place = device.zeros([65, 3]);
    const accepted: Tensor[] = [];
    weight.gradSink = {
      target: () => place,
      accept: (_, gradient) => void accepted.push(gradient),
      final: () => undefined,
    };
    await linearCrossEntropy(x, targets, { weight, chunkBytes: 1 }).backward();
    expect(accepted).toEqual([place]);
    const gradient = await place.toArray();
    expect(gradient[64 * 3]).toBeCloseTo((1 / 65 - 1 / 2) * 0.5, 6);
  });

  test('the sum of no targets is 0 and its gradients are zeros', async () => {
    const { device } = make();
    const x = device.empty([0, 3], { requiresGrad: true });
    const weight = device.full([65, 3], 1, { requiresGrad: true });
    const targets = device.empty([0], { dtype: 'i32' });
    const [loss, frozen] = [weight, weight.detach()].map((each) =>
      linearCrossEntropy(x, targets, { weight: each, reduction: 'sum' }),
    ) as [Tensor, Tensor];
    expect(await loss.item()).toBe(0);
    await loss.backward();
    expect(x.grad!.shape).toEqual([0, 3]);
    await frozen.backward();
    expect(x.grad!.shape).toEqual([0, 3]);
    expect(new Set(await weight.grad!.toArray())).toEqual(new Set([0]));
  });

  test('refuses operands that do not fit', () => {
    const { device, tensors } = make();
    const { x, weight, targets } = tensors([true, true]);
    const call = (options: Partial<LinearCrossEntropyOptions>, at = { x, targets }) =>
      linearCrossEntropy(at.x, at.targets, { weight, ...options });
    const floats = device.zeros([2]);
    expect(() => call({ weight: device.zeros([65, 4]) })).toThrow(ShapeError);
    expect(() => call({ weight: device.zeros([3]) })).toThrow(ShapeError);
    expect(() => call({ weight: device.zeros([0, 3]) })).toThrow(ShapeError);
    expect(() => call({}, { x, targets: device.tensor(Int32Array.of(1)) })).toThrow(ShapeError);
    expect(() => call({}, { x, targets: floats })).toThrow(DTypeError);
    expect(() => call({ weight: device.tensor(new Int32Array(65 * 3), [65, 3]) })).toThrow(
      DTypeError,
    );
    expect(() => call({ weights: device.zeros([3]) })).toThrow(ShapeError);
    expect(() => call({ chunkBytes: 0 })).toThrow(OptionError);
    expect(() => linearCrossEntropy(x, targets, {} as LinearCrossEntropyOptions)).toThrow(
      OptionError,
    );
  });
});

test.each([
  ['a GPU', 'webgpu', false, 7],
  ["a GPU's driver on the CPU", 'webgpu', true, 158],
  ['the CPU device', 'cpu', true, 158],
] as const)(
  '%s makes the gradients of GPT-2 over 8,192 rows in few chunks',
  async (_, kind, isSoftware, chunks) => {
    const { info } = createReferenceBackend();
    const losses: string[] = [];
    const onKernel = (kernel: string, call: object) => {
      const { epilogue } = call as Partial<KernelCalls['matmul']>;
      return epilogue?.kind === 'crossEntropyBackward' && losses.push(kernel);
    };
    const limits = { maxBufferBytes: 2 ** 32, maxViewBytes: 2 ** 32 };
    const model = { info: { ...info, kind, isSoftware, limits } };
    const device = new Device(createDryBackend(model, { onKernel }));
    const x = device.empty([8192, 768]);
    const weight = device.empty([50257, 768]);
    x.requiresGrad = true;
    weight.requiresGrad = true;
    await linearCrossEntropy(x, device.zeros([8192], { dtype: 'i32' }), { weight }).backward();
    expect(losses).toHaveLength(chunks);
    await device.dispose();
  },
);

describe('linearCrossEntropyPart', () => {
  const [rows, classes, dim] = [70, 30, 5];
  const numbers = (count: number) =>
    Float32Array.from({ length: count }, (_, i) => Math.fround(Math.sin(i * i)));
  const [xs, weights] = [numbers(rows * dim), numbers(classes * dim)];
  /** One below the classes, some of them, and one above. */
  const ids = Int32Array.from({ length: rows }, (_, i) => (i % (classes + 2)) - 1);
  const logit = (row: number, id: number) =>
    Array.from({ length: dim }, (_, k) => xs[row * dim + k]! * weights[id * dim + k]!).reduce(
      (sum, term) => sum + term,
    );

  for (const { name, reason, open } of BACKENDS) {
    test.skipIf(reason !== undefined)(`sums over its classes, on ${name}`, async () => {
      const device = new Device(await open());
      onTestFinished(() => device.backend.dispose());
      const part = linearCrossEntropyPart(device.tensor(xs, [rows, dim]), device.tensor(ids), {
        weight: device.tensor(weights, [classes, dim]),
        hasSlopes: true,
        chunkBytes: 1, // chunks of 64 and 6 rows
      });
      const [logSumExp, losses, slopes] = await Promise.all([
        part.logSumExp.toArray(),
        part.losses.toArray(),
        part.slopes!.toArray(),
      ]);
      for (let row = 0; row < rows; row++) {
        const terms = Array.from({ length: classes }, (_, id) => Math.exp(logit(row, id)));
        const sum = terms.reduce((all, term) => all + term);
        expect(logSumExp[row]).toBeCloseTo(Math.log(sum), 5);
        const id = ids[row]!;
        const loss = id >= 0 && id < classes ? Math.log(sum) - logit(row, id) : 0;
        expect(losses[row]).toBeCloseTo(loss, 5);
        for (let k = 0; k < dim; k++) {
          const slope = terms.reduce(
            (all, term, i) => all + (term / sum) * weights[i * dim + k]!,
            0,
          );
          expect(slopes[row * dim + k]).toBeCloseTo(slope, 5);
        }
      }
    });
  }

  test('computes no slopes unless they are asked for, and records nothing', () => {
    const device = new Device(createReferenceBackend());
    const x = device.full([2, 3], 0.5, { requiresGrad: true });
    const weight = device.full([4, 3], 0.25);
    const part = linearCrossEntropyPart(x, device.tensor(Int32Array.of(0, 9)), { weight });
    expect(part.slopes).toBeUndefined();
    expect(part.losses.requiresGrad).toBe(false);
  });
});
