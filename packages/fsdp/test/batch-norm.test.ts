// Sharded training of networks with batch norms equals replicas whose gradients are averaged, and
// options that must not change a bit don't.

import type { FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { describe, expect, it } from 'vitest';
import { expectClose } from '../../../tooling/test-kit/index.ts';
import {
  type NetOutcome,
  type ShardedNetOptions,
  trainReplicas,
  trainSharded,
} from './support/residual-nets.js';

type Norm = 'batch' | 'sync';

/** In the short run only wrapped norms that are synchronized are trained in bf16, too. */
const isLong = process.env.SHARDWEAVE_LONG === '1';

function expectNear(actual: NetOutcome[], expected: NetOutcome[], tolerance: number): void {
  actual.forEach(({ losses, weights, buffers }, rank) => {
    const other = expected[rank]!;
    expectClose(losses, other.losses, tolerance, `rank ${rank} losses`);
    expectClose(weights, other.weights, tolerance);
    expectClose(buffers, other.buffers, tolerance);
  });
}

/**
 * Compares sharded training with replicas. In f32 all numbers are compared. In bf16 only the first
 * losses are compared with f32 (later ones part at the kinks of relu), and all bits with whole
 * copies in bf16 on each rank.
 */
async function expectReplicas(worldSize: number, options: ShardedNetOptions): Promise<void> {
  const sharded = await trainSharded(worldSize, options);
  const replicas = await trainReplicas(worldSize, options);
  if (options.fsdp?.mixedPrecision !== true) {
    return expectNear(sharded, replicas, 1e-6);
  }
  sharded.forEach(({ losses }, rank) => {
    // bf16 has eight bits of precision, and each of a dozen layers rounds.
    expectClose(losses.slice(0, 1), replicas[rank]!.losses.slice(0, 1), 5e-2, `rank ${rank}`);
  });
  expect(sharded).toEqual(await trainSharded(worldSize, { ...options, isReplicating: true }));
}

describe('a residual network with batch norms', () => {
  const mixed: Partial<FsdpOptions> = { mixedPrecision: true, computeDType: 'bf16' };
  it.each<{ norm: Norm; worldSize: number; isWrappingBn: boolean; fsdp: Partial<FsdpOptions> }>([
    { norm: 'batch', worldSize: 1, isWrappingBn: false, fsdp: {} },
    { norm: 'batch', worldSize: 2, isWrappingBn: false, fsdp: {} },
    { norm: 'batch', worldSize: 3, isWrappingBn: true, fsdp: { reshardAfterForward: false } },
    { norm: 'sync', worldSize: 2, isWrappingBn: true, fsdp: {} },
    { norm: 'sync', worldSize: 3, isWrappingBn: false, fsdp: { flattenParameters: false } },
    { norm: 'sync', worldSize: 2, isWrappingBn: true, fsdp: mixed },
  ])(
    '$norm statistics, world size $worldSize, wrapped norms $isWrappingBn, $fsdp: equals replicas',
    async ({ norm, worldSize, ...options }) => {
      const net = { norm, numForwards: 1 };
      await expectReplicas(worldSize, { ...net, ...options });
    },
  );

  it.each([2, 4])(
    'sync statistics of %i ranks: equals one process with all rows',
    async (ranks) => {
      const net = { norm: 'sync', numForwards: 2 } as const;
      const [whole] = await trainReplicas(1, { ...net, norm: 'batch', rows: 8 });
      const parts = await trainSharded(ranks, { ...net, rows: 8 / ranks, isWrappingBn: true });
      const losses = whole!.losses.map(
        (_, step) => parts.reduce((sum, part) => sum + part.losses[step]!, 0) / ranks,
      );
      expectNear(
        parts.map((part) => ({ ...part, losses })),
        parts.map(() => whole!),
        1e-6, // Sharding adds up other rows first, and float64 differs by 4e-7 from each result.
      );
    },
  );

  it('sync statistics are equal on all ranks, and batch statistics are not', async () => {
    for (const norm of ['sync', 'batch'] as const) {
      const [first, second] = await trainSharded(2, { norm, numForwards: 1 });
      const isEqual = [...first!.buffers].every(
        ([name, values]) => String(values) === String(second!.buffers.get(name)),
      );
      expect(isEqual).toBe(norm === 'sync');
    }
  });
});

describe.each<{ norm: Norm; isWrappingBn: boolean }>([
  { norm: 'batch', isWrappingBn: false },
  { norm: 'batch', isWrappingBn: true },
  { norm: 'sync', isWrappingBn: false },
  { norm: 'sync', isWrappingBn: true },
])('two forwards a step, $norm norms wrapped $isWrappingBn', ({ norm, isWrappingBn }) => {
  const net = { norm, isWrappingBn, numForwards: 2 };
  // None of these options changes a number, so their pairs need no cells of their own: all outcomes
  // equal the first.
  const variants: Pick<ShardedNetOptions, 'fsdp' | 'checkpoint'>[] = [
    { fsdp: { flattenParameters: false, bucketCapMb: 0 } },
    { checkpoint: 'inside', fsdp: { bucketCapMb: 0 } },
    { checkpoint: 'inside', fsdp: { flattenParameters: false } },
    { checkpoint: 'outside' },
    { checkpoint: 'outside', fsdp: { flattenParameters: false, reshardAfterForward: false } },
    { checkpoint: 'inside', fsdp: { reshardAfterForward: false, bucketCapMb: 0 } },
  ];

  const precisions = [
    { precision: 'f32', fsdp: {} },
    { precision: 'bf16', fsdp: { mixedPrecision: true, computeDType: 'bf16' } },
  ] as const;
  const isInBoth = isLong || (isWrappingBn && norm === 'sync');
  it.each(isInBoth ? precisions : precisions.slice(0, 1))(
    '$precision equals replicas, bit-equal with and without checkpoint, flattening, buckets',
    async ({ fsdp }) => {
      await expectReplicas(2, { ...net, fsdp });
      const expected = await trainSharded(2, { ...net, fsdp, inspect });
      // In the short run norms that are wrapped take all of them, and others every other one.
      const taken = variants.filter((_, i) => isLong || isWrappingBn || i % 2 === 0);
      for (const variant of taken) {
        const options = { ...variant, fsdp: { ...fsdp, ...variant.fsdp } };
        const outcome = await trainSharded(2, { ...net, ...options, inspect });
        expect(outcome, JSON.stringify(variant)).toEqual(expected);
      }
    },
  );
});

/**
 * Checks that a gradient is absent or whole during backward, and that each unit has its shard's
 * gradient after it.
 */
function inspect(model: FullyShardedDataParallel, when: 'made' | 'stepped'): void {
  const { device } = model;
  if (when === 'stepped') {
    const gradients = model.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
    for (const { grad, shape, name } of gradients) {
      expect(grad?.shape, name).toEqual(shape);
    }
    for (const instance of model.instances()) {
      instance.assertState('idle');
    }
    expect(device.memory().live).toMatchObject({ gathered: 0, staging: 0, activation: 0 });
    return;
  }
  for (const parameter of model.parameters()) {
    device.autograd.onGradientFinal(parameter, () => {
      for (const instance of model.instances()) {
        for (const { flat, parameters } of instance.units) {
          if (flat.grad !== undefined) {
            expect(flat.grad.shape).toEqual(flat.shape);
          }
          for (const { tensor } of parameters) {
            expect(tensor.grad).toBeUndefined();
          }
        }
      }
    });
  }
}
