// Ranks have batches of unequal sizes. The average of their local sums, times their number, is the
// gradient of one process with all rows, also where a batch norm has the statistics of all of them.

import { BatchNorm1d, type Module, SyncBatchNorm } from '@shardweave/nn';
import { square, sum } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { DIM, expectClose, onRanks, type Rows } from '../../../tooling/test-kit/index.ts';
import { CastNet } from './support/cast-net.js';
import { type Rank, wrap } from './support/ranks.js';

/** The number of rows of each rank. */
const SIZES = [3, 1, 4, 2];

/** Returns the rows of `count` ranks from rank `first` on. */
function rowsOfRanks(first: number, count: number): Rows {
  const add = (sizes: readonly number[]) => sizes.reduce((a, b) => a + b, 0);
  return { first: add(SIZES.slice(0, first)), count: add(SIZES.slice(first, first + count)) };
}

/** Returns the gradients of the sum of squares over these rows, and the buffers after it. */
async function outcome(model: Module, rows: Rows) {
  const { device } = model;
  const values = Float32Array.from({ length: rows.count * DIM }, (_, i) =>
    Math.sin(1.3 * (rows.first * DIM + i)),
  );
  await device.scope(async () => {
    const x = device.tensor(values, [rows.count, DIM]);
    await sum(square(await model.call(x))).backward();
  });
  const read = async (kind: 'gradients' | 'buffers') =>
    new Map(
      await Promise.all(
        (kind === 'gradients' ? model.namedParameters() : model.namedBuffers()).map(
          async ([name, tensor]) =>
            [name, await (kind === 'gradients' ? tensor.grad! : tensor).toArray()] as const,
        ),
      ),
    );
  return { gradients: await read('gradients'), buffers: await read('buffers') };
}

interface Case {
  readonly dtype: 'f32' | 'f16';
  readonly isNormed: boolean;
  /** How many ranks share statistics, and how many average gradients. */
  readonly statistics: number;
  readonly ddp: number;
}

/** Returns what each of four ranks has after one backward over its own rows. */
function overRanks({ dtype, isNormed, statistics, ddp }: Case) {
  const part = ({ group, rank }: Rank, size: number) => group.split(Math.floor(rank / size));
  return onRanks(SIZES.length, async (rank) => {
    const options = { numFeatures: DIM, group: await part(rank, statistics) };
    const norm = isNormed ? new SyncBatchNorm(rank.device, options) : undefined;
    const net = new CastNet(rank.device, dtype, { norm });
    const model = wrap(net, { group: await part(rank, ddp) }, { messageSize: 1 });
    return outcome(model, rowsOfRanks(rank.rank, 1));
  });
}

/** Returns what one process has, which sums in f64, with the rows of `count` ranks. */
async function alone({ dtype, isNormed }: Case, first: number, count: number) {
  const [whole] = await onRanks(
    1,
    ({ device }) => {
      const norm = isNormed ? new BatchNorm1d(device, { numFeatures: DIM }) : undefined;
      return outcome(new CastNet(device, dtype, { norm }), rowsOfRanks(first, count));
    },
    { backend: createReferenceBackend() },
  );
  return whole!;
}

it.each<Case>([
  { dtype: 'f32', isNormed: false, statistics: 4, ddp: 4 },
  { dtype: 'f16', isNormed: false, statistics: 2, ddp: 2 },
  { dtype: 'f32', isNormed: true, statistics: 4, ddp: 4 },
  { dtype: 'f32', isNormed: true, statistics: 2, ddp: 2 },
  { dtype: 'f32', isNormed: true, statistics: 2, ddp: 4 },
  { dtype: 'f16', isNormed: true, statistics: 4, ddp: 4 },
  { dtype: 'f16', isNormed: true, statistics: 2, ddp: 2 },
])('local sums over unequal batches, averaged, times W, equal one process: %j', async (each) => {
  const { dtype, statistics, ddp } = each;
  const tolerance = dtype === 'f32' ? 2e-6 : 4 * 2 ** -11;
  const perRank = await overRanks(each);
  // Ranks that share statistics share a batch, which counts once.
  const wholes = await Promise.all(
    [0, 1, 2, 3]
      .filter((rank) => rank % statistics === 0)
      .map((first) => alone(each, first, statistics)),
  );
  for (const [rank, { gradients, buffers }] of perRank.entries()) {
    expectClose(buffers, wholes[Math.floor(rank / statistics)]!.buffers, tolerance);
    const first = Math.floor(rank / ddp) * ddp;
    const parts = wholes.slice(first / statistics, (first + ddp) / statistics);
    for (const [name, values] of gradients) {
      const sums = parts
        .map((whole) => [...whole.gradients.get(name)!])
        .reduce((a, b) => a.map((value, i) => value + b[i]!));
      const scale = Math.max(1, ...sums.map(Math.abs));
      const found = Array.from(values, (value) => ddp * value);
      expectClose(found, sums, tolerance * scale, name);
    }
  }
  expect(perRank[0]!.gradients).not.toEqual(wholes[0]!.gradients); // The average is smaller.
});
