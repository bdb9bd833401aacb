// These tests check what the numeric class of a device says, and that the cpu device's kernels have
// the bits of the version that they claim.

import { fnv1a } from '@shardweave/dtypes';
import {
  type Backend,
  Device,
  KERNEL_VERSIONS,
  type KernelCalls,
  type KernelName,
  type View,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, test } from 'vitest';
import { Bench, open, product, reason } from './support/webgpu-kit.js';

/** The class of a device with a version and what its kernels are compiled for, if anything. */
function classLike(kind: 'cpu' | 'reference', compiledFor = ''): RegExp {
  return new RegExp(`^${kind} kernels ${KERNEL_VERSIONS[kind]}${compiledFor}, bits [0-9a-f]{16}$`);
}

async function classOf(backend: Backend): Promise<string> {
  const device = new Device(backend);
  let reads = 0;
  const read = backend.read.bind(backend);
  backend.read = (...options) => {
    reads += 1;
    return read(...options);
  };
  const found = await device.numericClass();
  expect(device.memory().reservedBytes, 'nothing stays').toBe(0);
  expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
  const { dispatches } = backend;
  const other = new Device(backend);
  expect(await Promise.all([device, other].map((each) => each.numericClass()))).toEqual([
    found,
    found,
  ]);
  expect(backend.dispatches, 'asked once').toBe(dispatches);
  expect(reads, 'in one batch').toBe(1);
  device.dispose();
  other.dispose();
  await backend.dispose();
  return found;
}

test('cpu devices are of one class, whatever their threads, and of another with fused products', async () => {
  const bits = await Promise.all(
    [false, true].map(async (fusedProducts) => {
      const inline = await classOf(await createCpuBackend({ threads: 0, fusedProducts }));
      expect(inline).toMatch(
        classLike('cpu', ` for ${fusedProducts ? 'fused' : 'plain'} products`),
      );
      expect(await classOf(await createCpuBackend({ threads: 2, fusedProducts }))).toBe(inline);
      return inline.slice(-16);
    }),
  );
  expect(bits[0]).not.toBe(bits[1]);
});

test('the reference device is a class of its own', async () => {
  const found = await classOf(createReferenceBackend());
  expect(found).toMatch(classLike('reference'));
  expect(await classOf(createReferenceBackend()), 'another device').toBe(found);
});

test.skipIf(reason !== undefined)('webgpu devices name their adapter and its kernels', async () => {
  const [software, hardware] = await Promise.all([
    open({ kernelProfile: 'software' }),
    open({ kernelProfile: 'hardware' }),
  ]);
  const { description } = software.info;
  const found = await classOf(software);
  expect(found).toContain(
    `webgpu kernels ${KERNEL_VERSIONS.webgpu} for software (${description}), bits `,
  );
  expect(await classOf(hardware)).toContain(`for hardware (${description}), bits `);
});

test.skipIf(reason !== undefined)('tiles that were chosen are part of the class', async () => {
  const backend = await open({ kernelProfile: 'software' });
  const device = new Device(backend);
  const before = await device.numericClass();
  const [one, other] = ['direct 8x8x8', 'direct 4x4x8'].map((tile) => ({
    'NN f32 f32 f32 large': tile,
  }));
  const found: string[] = [];
  for (const table of [one!, other!, one!, {}]) {
    backend.importMatmulChoices(table);
    found.push(await device.numericClass());
  }
  expect(found[0]).toMatch(/\), tiles [0-9a-f]{8}, bits /);
  expect(found).toEqual([found[0], expect.not.stringMatching(found[0]!), found[0], before]);
  device.dispose();
  await backend.dispose();
});

/** A reference device whose results are changed behind those calls of a kernel that `is` picks. */
function changed<K extends KernelName>(
  kernel: K,
  is: (call: KernelCalls[K]) => boolean,
  change: (run: Backend['run'], call: KernelCalls[K]) => void,
): Backend {
  const backend = createReferenceBackend();
  const run = backend.run.bind(backend);
  backend.run = (asked, call) => {
    run(asked, call);
    const own = call as KernelCalls[KernelName] as KernelCalls[K];
    if ((asked as KernelName) === kernel && is(own)) {
      change(run, own);
    }
  };
  return backend;
}

/** Adds a unit to the last place of most results. */
function nudge(run: Backend['run'], { out }: { readonly out: View }): void {
  run('affine', { x: out, out, scale: 1 + 2 ** -23, shift: 0 });
}

let unchanged: string | undefined;
const UNARY = ['exp', 'log', 'reciprocal', 'sqrt', 'tanh'] as const;
test.each(
  [
    ...UNARY.map((kind) => ({
      name: kind as string,
      backend: () => changed('unary', (call) => call.kind === kind, nudge),
    })),
    { name: 'a softmax', backend: () => changed('softmax', () => true, nudge) },
    { name: 'a long sum', backend: () => changed('reduce', ({ dim }) => dim === 1000, nudge) },
    {
      name: 'products of whole vectors',
      backend: () =>
        changed('matmul', ({ m, n, k }) => m % 4 === 0 && n % 4 === 0 && k < 99, nudge),
    },
    {
      name: 'products of other rows',
      backend: () => changed('matmul', ({ n }) => n % 2 === 1, nudge),
    },
    {
      name: 'products with many terms',
      backend: () => changed('matmul', ({ k }) => k >= 1024, nudge),
    },
    {
      name: 'numbers below 2^-126, which it takes for 0',
      backend: () =>
        changed(
          'affine',
          ({ scale }) => scale < 1e-30,
          // A power of two that is too large for subnormals to come back from.
          (run, { out }) => {
            run('affine', { x: out, out, scale: 2 ** -20, shift: 0 });
            run('affine', { x: out, out, scale: 2 ** 20, shift: 0 });
          },
        ),
    },
    {
      name: 'products that are added to something',
      backend: () =>
        changed(
          'affine',
          ({ shift }) => shift !== 0,
          (run, { x, out, scale, shift }) => {
            run('affine', { x, out, scale, shift: 0 });
            run('affine', { x: out, out, scale: 1, shift });
          },
        ),
    },
  ].map(({ name, backend }) => [name, backend] as const),
)('a device that differs in %s is of another class', async (_, backend) => {
  unchanged ??= await classOf(createReferenceBackend());
  expect(await classOf(backend())).not.toBe(unchanged);
});

/** Returns a hash of what kernels of each family give for inputs that never change. */
async function bitsOf(backend: Backend): Promise<number> {
  const bench = new Bench(backend);
  const [rows, cols] = [37, 65];
  const [x, y, weight] = [rows * cols, rows * cols, cols].map((size) => bench.random(size, 'f32'));
  const outs: { readonly out: ReturnType<Bench['zeros']> }[] = [];
  const zeros = (size: number) => {
    const out = bench.zeros(size);
    outs.push({ out });
    return out;
  };
  const extent = { rows, cols };
  const [mean, rstd] = [zeros(rows), zeros(rows)];
  const causal = { ...extent, scale: 0.5, causalRows: 0, isLog: true };
  backend.run('softmax', { x: x!, out: zeros(rows * cols), ...causal });
  const norm = { isCentered: true, x: x!, weight, mean, rstd, ...extent } as const;
  backend.run('rowNorm', { ...norm, bias: weight, out: zeros(rows * cols), eps: 1e-5 });
  backend.run('rowNormBackward', { ...norm, dy: y!, dx: zeros(rows * cols) });
  backend.run('unary', { kind: 'gelu', x: x!, out: zeros(rows * cols) });
  const tanh = { kind: 'geluTanh', x: x! } as const;
  backend.run('unary', { ...tanh, out: zeros(rows * cols) });
  backend.run('unaryBackward', { ...tanh, dy: y!, out: zeros(rows * cols) });
  const line = { outer: 1, dim: rows * cols, inner: 1 };
  backend.run('reduce', { kind: 'sum', x: x!, out: zeros(1), ...line });
  const spans = [{ start: 0, length: rows * cols }];
  backend.run('normNodes', { x: x!, out: zeros(1), spans, power: 2 });
  const shape = product({ m: rows, n: rows, k: cols, transposeA: false, transposeB: true });
  const call = { a: x!, b: y!, bias: undefined, out: zeros(rows * rows) };
  backend.run('matmul', { ...call, ...shape });
  // There are more rows than a block of attention has, and few heads, whose gradients are summed in
  // parts.
  const [queries, dim] = [200, 4];
  const heads = {
    batch: 1,
    numHeads: 2,
    numKvHeads: 1,
    numQueries: queries,
    numKeys: queries,
    dim,
  };
  const strides = { batch: 0, head: dim, row: 3 * dim };
  const rest = { mask: undefined, querySegments: undefined, keySegments: undefined };
  const attention = {
    ...heads,
    ...rest,
    ...{ scale: 0.25, queryOffset: 0, isCausal: true, window: 0, dropout: undefined },
    ...{ q: x!, k: x!, v: y!, qStrides: strides, kStrides: strides, vStrides: strides },
    maskStrides: [0, 0, 0, 0] as const,
    out: zeros(queries * 2 * dim),
    stats: zeros(4 * queries),
  };
  backend.run('attention', attention);
  const size = queries * strides.row;
  const [dq, dk, dv] = [zeros(size), zeros(size), zeros(size)];
  const dOut = { ...y!, size: queries * 2 * dim };
  backend.run('attentionBackward', { ...attention, dOut, dq, dk, dv });
  let hash = '';
  for (const { out } of outs) {
    const bytes = await backend.read(out.buffer, 0, out.buffer.byteLength);
    hash += fnv1a(Buffer.from(bytes).toString('latin1')).toString(16);
  }
  bench.freeAll();
  await backend.dispose();
  return fnv1a(hash);
}

// If these numbers change, raise KERNEL_VERSIONS.cpu: saves and ranks with other bits belong to
// another class.
test.each([
  { fusedProducts: false, expected: { 6: 388320290 } },
  { fusedProducts: true, expected: { 6: 2350833395 } },
])(
  'the bits of the cpu kernels are those of their version: $fusedProducts',
  async ({ fusedProducts, expected }) => {
    const version = KERNEL_VERSIONS.cpu as keyof typeof expected;
    expect(await bitsOf(await createCpuBackend({ threads: 0, fusedProducts }))).toBe(
      expected[version],
    );
  },
);
