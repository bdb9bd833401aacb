// The statistics of batch norms under DDP, over all ranks' rows, are compared with one process in
// f64. Further tests check buffers.

import { BatchNorm1d, Module, SyncBatchNorm } from '@shardweave/nn';
import {
  type Backend,
  cast,
  type Device,
  linear,
  square,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { onRanks, type Rank, wrap } from './support/ranks.js';

const [IN, HIDDEN, OUT] = [6, 5, 3];
const EPS = 1e-5;
/** The number of rows of each rank. */
const SIZES = [3, 1, 4, 2];

type NormMaker = (device: Device) => BatchNorm1d;

const wave = (count: number, seed: number, scale = 1) =>
  Array.from({ length: count }, (_, i) => scale * Math.sin(1.3 * i + seed));

/** Returns rows [first, first + count) of an endless table. */
const rowsOf = (first: number, count: number) =>
  wave(IN * (first + count), 0.4, 2).slice(IN * first);

const WEIGHTS = {
  first: wave(HIDDEN * IN, 1),
  gain: wave(HIDDEN, 2).map((x) => 1 + x / 2),
  shift: wave(HIDDEN, 3, 0.3),
  last: wave(OUT * HIDDEN, 4),
};

/**
 * This module runs a linear layer, a batch norm, tanh and a linear layer. Products are in f32, and
 * the two matrices in `dtype`.
 */
class NormNet extends Module<[x: Tensor], Tensor> {
  readonly first: Tensor;
  readonly last: Tensor;
  readonly norm: BatchNorm1d;

  constructor(device: Device, dtype: 'f32' | 'f16', makeNorm: NormMaker) {
    super(device);
    this.first = this.parameter('first', device.tensor(WEIGHTS.first, [HIDDEN, IN], { dtype }));
    this.norm = this.child('norm', makeNorm(device));
    this.last = this.parameter('last', device.tensor(WEIGHTS.last, [OUT, HIDDEN], { dtype }));
    device.scope(() =>
      device.noGrad(() => {
        device.copyInto(this.norm.weight!, device.tensor(WEIGHTS.gain));
        device.copyInto(this.norm.bias!, device.tensor(WEIGHTS.shift));
      }),
    );
  }

  async forward(x: Tensor): Promise<Tensor> {
    const hidden = await this.norm.call(
      linear(x, { weight: cast(this.first, 'f32'), transposeWeight: true }),
    );
    return linear(tanh(hidden), { weight: cast(this.last, 'f32'), transposeWeight: true });
  }
}

interface Outcome {
  readonly gradients: ReadonlyMap<string, readonly number[]>;
  readonly mean: readonly number[];
  readonly variance: readonly number[];
}

/**
 * Computes the same by plain loops in f64: gradients of the sum of squares over all rows, and
 * running statistics.
 */
function reference(first: number, count: number): Outcome {
  const x = rowsOf(first, count);
  const { first: w, gain, shift, last: v } = WEIGHTS;
  const zeros = (length: number) => new Array<number>(length).fill(0);
  const [dW, dV, dGain, dShift] = [w, v, gain, shift].map(({ length }) => zeros(length)) as [
    number[],
    number[],
    number[],
    number[],
  ];
  const h = zeros(count * HIDDEN);
  for (let r = 0; r < count; r++) {
    for (let c = 0; c < HIDDEN; c++) {
      for (let k = 0; k < IN; k++) {
        h[r * HIDDEN + c]! += x[r * IN + k]! * w[c * IN + k]!;
      }
    }
  }
  const [mean, variance] = [zeros(HIDDEN), zeros(HIDDEN)];
  const xhat = zeros(h.length);
  const dxhat = zeros(h.length);
  for (let c = 0; c < HIDDEN; c++) {
    for (let r = 0; r < count; r++) {
      mean[c]! += h[r * HIDDEN + c]! / count;
    }
    for (let r = 0; r < count; r++) {
      variance[c]! += (h[r * HIDDEN + c]! - mean[c]!) ** 2 / count;
    }
    for (let r = 0; r < count; r++) {
      xhat[r * HIDDEN + c] = (h[r * HIDDEN + c]! - mean[c]!) / Math.sqrt(variance[c]! + EPS);
    }
  }
  for (let r = 0; r < count; r++) {
    const t = zeros(HIDDEN).map((_, c) => Math.tanh(gain[c]! * xhat[r * HIDDEN + c]! + shift[c]!));
    const dt = zeros(HIDDEN);
    for (let o = 0; o < OUT; o++) {
      let y = 0;
      for (let c = 0; c < HIDDEN; c++) {
        y += t[c]! * v[o * HIDDEN + c]!;
      }
      for (let c = 0; c < HIDDEN; c++) {
        dV[o * HIDDEN + c]! += 2 * y * t[c]!;
        dt[c]! += 2 * y * v[o * HIDDEN + c]!;
      }
    }
    for (let c = 0; c < HIDDEN; c++) {
      const dy = dt[c]! * (1 - t[c]! ** 2);
      dGain[c]! += dy * xhat[r * HIDDEN + c]!;
      dShift[c]! += dy;
      dxhat[r * HIDDEN + c] = dy * gain[c]!;
    }
  }
  for (let c = 0; c < HIDDEN; c++) {
    let [sumOf, sumWith] = [0, 0];
    for (let r = 0; r < count; r++) {
      sumOf += dxhat[r * HIDDEN + c]! / count;
      sumWith += (dxhat[r * HIDDEN + c]! * xhat[r * HIDDEN + c]!) / count;
    }
    for (let r = 0; r < count; r++) {
      const at = r * HIDDEN + c;
      const dh = (dxhat[at]! - sumOf - xhat[at]! * sumWith) / Math.sqrt(variance[c]! + EPS);
      for (let k = 0; k < IN; k++) {
        dW[c * IN + k]! += dh * x[r * IN + k]!;
      }
    }
  }
  return {
    gradients: new Map([
      ['first', dW],
      ['norm.weight', dGain],
      ['norm.bias', dShift],
      ['last', dV],
    ]),
    mean: mean.map((value) => 0.1 * value),
    variance: variance.map((value) => 0.9 + (0.1 * value * count) / (count - 1)),
  };
}

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

/** Returns each rank's averaged gradients and statistics after one backward over its own rows. */
function trained(dtype: 'f32' | 'f16', groups: { statistics: number; ddp: number }) {
  const part = ({ group, rank }: Rank, size: number) => group.split(Math.floor(rank / size));
  return onRanks(
    SIZES.length,
    async (rank): Promise<Outcome> => {
      const { device } = rank;
      const statistics = await part(rank, groups.statistics);
      const group = await part(rank, groups.ddp);
      const net = new NormNet(device, dtype, () => {
        return new SyncBatchNorm(device, { numFeatures: HIDDEN, eps: EPS, group: statistics });
      });
      const model = wrap(net, { group }, { messageSize: 1 });
      const first = SIZES.slice(0, rank.rank).reduce((a, b) => a + b, 0);
      await device.scope(async () => {
        const rows = rowsOf(first, SIZES[rank.rank]!);
        const x = device.tensor(Float32Array.from(rows), [SIZES[rank.rank]!, IN]);
        await sum(square(await model.call(x))).backward();
      });
      const gradients = new Map<string, number[]>();
      for (const [name, { grad }] of model.namedParameters()) {
        gradients.set(name, [...(await grad!.toArray())]);
      }
      const buffers = new Map(net.namedBuffers());
      const read = async (name: string) => [...(await buffers.get(`norm.${name}`)!.toArray())];
      return {
        gradients,
        mean: await read('running_mean'),
        variance: await read('running_var'),
      };
    },
    { backend },
  );
}

function expectClose(actual: readonly number[], expected: readonly number[], tolerance: number) {
  expect(actual).toHaveLength(expected.length);
  const scale = Math.max(1, ...expected.map(Math.abs));
  actual.forEach((value, i) => {
    expect(Math.abs(value - expected[i]!) / scale).toBeLessThan(tolerance);
  });
}

const summed = (outcomes: readonly Outcome[], name: string) =>
  outcomes
    .map(({ gradients }) => gradients.get(name)!)
    .reduce((a, b) => a.map((value, i) => value + b[i]!));

describe('sync batch norm over unequal batches, local sums averaged, times W', () => {
  it.each([
    ['f32', 4, 4, 2e-6],
    ['f32', 2, 2, 2e-6],
    ['f32', 2, 4, 2e-6],
    ['f16', 4, 4, 4 * 2 ** -11],
    ['f16', 2, 2, 4 * 2 ** -11],
  ] as const)(
    'equal one process in f64: %s, statistics of %i, gradients of %i ranks',
    async (dtype, statistics, ddp, tolerance) => {
      const perRank = await trained(dtype, { statistics, ddp });
      const wholes = [0, 1, 2, 3].map((rank) => {
        const first = Math.floor(rank / statistics) * statistics;
        const sizes = SIZES.slice(first, first + statistics);
        const before = SIZES.slice(0, first).reduce((a, b) => a + b, 0);
        return reference(
          before,
          sizes.reduce((a, b) => a + b, 0),
        );
      });
      perRank.forEach(({ gradients, mean, variance }, rank) => {
        expectClose(mean, wholes[rank]!.mean, tolerance);
        expectClose(variance, wholes[rank]!.variance, tolerance);
        const firstRank = Math.floor(rank / ddp) * ddp;
        // Ranks that share statistics share a batch, which counts once.
        const parts = wholes
          .slice(firstRank, firstRank + ddp)
          .filter((_, i) => i % statistics === 0);
        for (const [name, values] of gradients) {
          expectClose(
            values.map((value) => ddp * value),
            summed(parts, name),
            tolerance,
          );
        }
      });
      expect(wholes[0]!.gradients.get('first')).not.toEqual(perRank[0]!.gradients.get('first'));
    },
  );
});

describe('buffers of batch norms that each rank has for itself', () => {
  const stepped = (options: { readonly broadcastBuffers?: boolean }) =>
    onRanks(
      2,
      async (rank) => {
        const { device } = rank;
        const net = new NormNet(
          device,
          'f32',
          () => new BatchNorm1d(device, { numFeatures: HIDDEN }),
        );
        const model = wrap(net, rank, options);
        const buffersOf = async () => {
          const reads = net.namedBuffers().map(async ([, buffer]) => [...(await buffer.toArray())]);
          return (await Promise.all(reads)).flat();
        };
        const seen: number[][] = [];
        net.norm.aroundForward({ before: async () => void seen.push(await buffersOf()) });
        for (let step = 0; step < 3; step++) {
          await device.scope(async () => {
            const x = device.tensor(Float32Array.from(rowsOf(4 * rank.rank + 8 * step, 4)), [
              4,
              IN,
            ]);
            await sum(square(await model.call(x))).backward();
          });
        }
        await model.syncBuffers({ root: 1 });
        return { seen, synced: await buffersOf() };
      },
      { backend },
    );

  it('follow rank 0 before each forward with broadcastBuffers, and are its own without', async () => {
    const [first, second] = await stepped({ broadcastBuffers: true });
    expect(second!.seen).toEqual(first!.seen);
    expect(new Set(first!.seen.map(String)).size).toBe(3); // Rank 0's own step is among them.
    const [alone, other] = await stepped({});
    expect(alone!.seen[0]).toEqual(other!.seen[0]);
    expect(alone!.seen[2]).not.toEqual(other!.seen[2]);
  });

  it('are equal after syncBuffers', async () => {
    const [first, second] = await stepped({});
    expect(second!.synced).toEqual(first!.synced);
    expect(second!.synced).not.toEqual(second!.seen[2]);
  });
});
