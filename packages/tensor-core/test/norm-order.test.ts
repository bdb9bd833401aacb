// The bits of a norm don't depend on where its elements were. Blocks that are taken one by one and
// added by hand give the same bits as whole nodes, on every device.

import {
  type Backend,
  LimitError,
  NORM_BLOCK_ELEMENTS,
  NORM_NODE_ELEMENTS,
  type Span,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, test } from 'vitest';
import { Bench, open, reason } from './support/webgpu-kit.js';

const SIZE = 2 * NORM_NODE_ELEMENTS + 77 * NORM_BLOCK_ELEMENTS + 5;
/** The elements before the parameter. They shift its blocks against those of the buffer. */
const LEAD = 64;

const devices: [string, () => Promise<Backend>][] = [
  ['reference', async () => createReferenceBackend()],
  ['cpu', () => createCpuBackend({ threads: 0 })],
  ['webgpu', () => open()],
];

/** Adds up values in the order that kernel-calls/norm.ts states. */
function tree(values: readonly number[], isMax: boolean): number {
  if (values.length === 1) {
    return values[0]!;
  }
  const next: number[] = [];
  for (let i = 0; i < values.length; i += 2) {
    const [left, right] = [values[i]!, values[i + 1] ?? 0];
    next.push(isMax ? Math.max(left, right) : Math.fround(left + right));
  }
  return tree(next, isMax);
}

test.each(devices.filter(([name]) => reason === undefined || name !== 'webgpu'))(
  'blocks one by one give the bits of whole nodes: %s',
  async (_name, openDevice) => {
    const backend = await openDevice();
    const bench = new Bench(backend);
    const x = bench.random(LEAD + SIZE, 'f32');
    const nodesOf = async (spans: readonly Span[], count: number, power: number) => {
      const out = bench.zeros(count);
      backend.run('normNodes', { x, out, spans, power });
      return [...new Float32Array((await backend.read(out.buffer, 0, count * 4)).slice().buffer)];
    };
    const blocks = Array.from({ length: Math.ceil(SIZE / NORM_BLOCK_ELEMENTS) }, (_, i) => {
      const start = i * NORM_BLOCK_ELEMENTS;
      return { start: LEAD + start, length: Math.min(NORM_BLOCK_ELEMENTS, SIZE - start) };
    });
    for (const power of [2, 3, Infinity]) {
      const isMax = power === Infinity;
      const single = await nodesOf(blocks, blocks.length, power);
      const whole = await nodesOf([{ start: LEAD, length: SIZE }], 3, power);
      const wanted = [0, 256, 512].map((at) => tree(single.slice(at, at + 256), isMax));
      expect(whole).toEqual(wanted);
      expect(tree(whole, isMax)).toBe(tree(single, isMax));
    }
    bench.freeAll();
    await backend.dispose();
  },
);

test.each(devices.filter(([name]) => reason === undefined || name !== 'webgpu'))(
  'what is below the normal numbers counts as 0 in a block, and not before: %s',
  async (_name, openDevice) => {
    const backend = await openDevice();
    const bench = new Bench(backend);
    const x = bench.zeros(256);
    const values = new Float32Array(256);
    // The squares are 2^-128, three of which add up to less than 2^-126.
    values.fill(2 ** -64, 0, 3);
    values.fill(2 ** -63, 128, 256); // The squares are 2^-126.
    backend.write(x.buffer, 0, new Uint8Array(values.buffer));
    const out = bench.zeros(2);
    const spans = [
      { start: 0, length: 128 },
      { start: 128, length: 128 },
    ];
    backend.run('normNodes', { x, out, spans, power: 2 });
    const nodes = new Float32Array((await backend.read(out.buffer, 0, 8)).slice().buffer);
    expect([...nodes]).toEqual([0, 2 ** -119]);
    bench.freeAll();
    await backend.dispose();
  },
);

test.skipIf(reason !== undefined)(
  'a node that no binding holds is refused, with the bytes it needs and those that bind',
  async () => {
    const backend = await open({ maxBindingBytes: 512 });
    const bench = new Bench(backend);
    const [x, out] = [bench.zeros(100), bench.zeros(1)];
    const run = () =>
      backend.run('normNodes', { x, out, spans: [{ start: 0, length: 100 }], power: 2 });
    expect(run).toThrow(LimitError);
    expect(run).toThrow(expect.objectContaining({ requestedBytes: 400, limitBytes: 256 }));
    await backend.dispose();
  },
);
