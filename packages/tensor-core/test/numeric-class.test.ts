// These tests check what the numeric class of a device says, and that the cpu device's kernels have
// the bits of the version that they claim.

import { fnv1a } from '@shardweave/dtypes';
import { type Backend, Device, KERNEL_VERSIONS, type KernelCalls } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, test } from 'vitest';
import { Bench, open, product, reason } from './support/webgpu-kit.js';

async function classOf(backend: Backend): Promise<string> {
  const device = new Device(backend);
  const found = await device.numericClass();
  expect(device.memory().live.total).toBe(0);
  const { dispatches } = backend;
  expect(await device.numericClass()).toBe(found);
  expect(backend.dispatches, 'asked once').toBe(dispatches);
  device.dispose();
  await backend.dispose();
  return found;
}

test.each([
  [false, 'plain'],
  [true, 'fused'],
])(
  'cpu devices are of one class, whatever their threads: fused products %s',
  async (fusedProducts, word) => {
    const inline = await classOf(await createCpuBackend({ threads: 0, fusedProducts }));
    expect(inline).toBe(`cpu kernels ${KERNEL_VERSIONS.cpu}, products plain, matmul ${word}`);
    expect(await classOf(await createCpuBackend({ threads: 2, fusedProducts }))).toBe(inline);
  },
);

test('the reference device is a class of its own', async () => {
  // Float64 holds the whole product, as a fused multiply-add does.
  expect(await classOf(createReferenceBackend())).toBe(
    `reference kernels ${KERNEL_VERSIONS.reference}, products fused, matmul fused`,
  );
});

test.skipIf(reason !== undefined)('webgpu devices name their adapter and its kernels', async () => {
  const [software, hardware] = await Promise.all([
    open({ kernelProfile: 'software' }),
    open({ kernelProfile: 'hardware' }),
  ]);
  const { description } = software.info;
  const found = await classOf(software);
  expect(found).toContain(
    `webgpu kernels ${KERNEL_VERSIONS.webgpu} for software (${description}), products `,
  );
  expect((await classOf(hardware)).replace('for hardware', 'for software')).toBe(found);
});

test('a device that rounds products is of another class than one that does not', async () => {
  const backend = createReferenceBackend();
  const run = backend.run.bind(backend);
  backend.run = (kernel, call) => {
    if (kernel === 'affine') {
      const { x, out, scale, shift } = call as KernelCalls['affine'];
      run('affine', { x, out, scale, shift: 0 });
      run('affine', { x: out, out, scale: 1, shift });
    } else {
      run(kernel, call);
    }
  };
  expect(await classOf(backend)).toContain('products plain');
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
  const norm = { x: x!, weight, mean, rstd, ...extent };
  backend.run('layerNorm', { ...norm, bias: weight, out: zeros(rows * cols), eps: 1e-5 });
  backend.run('layerNormBackward', { ...norm, dy: y!, dx: zeros(rows * cols) });
  backend.run('unary', { kind: 'gelu', x: x!, out: zeros(rows * cols) });
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
  { fusedProducts: false, expected: { 4: 2909456865 } },
  { fusedProducts: true, expected: { 4: 200042011 } },
])(
  'the bits of the cpu kernels are those of their version: $fusedProducts',
  async ({ fusedProducts, expected }) => {
    const version = KERNEL_VERSIONS.cpu as keyof typeof expected;
    expect(await bitsOf(await createCpuBackend({ threads: 0, fusedProducts }))).toBe(
      expected[version],
    );
  },
);
