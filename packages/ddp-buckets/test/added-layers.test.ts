// If layers are added after wrapping, all ranks get rank 0's values, as for the other layers.

import { DdpStructureError } from '@shardweave/ddp-buckets';
import { BatchNorm1d, Linear, type Module, Sequential, Sgd } from '@shardweave/nn';
import { type Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { errorsOnRanks } from '../../../tooling/test-kit/index.ts';
import { onRanks, type Rank, wrap } from './support/ranks.js';

const DIM = 4;

/** Returns a layer whose values differ by rank. */
function layer({ device, rank }: Rank, size = DIM): Linear {
  const made = new Linear(device, { inFeatures: DIM, outFeatures: size });
  fill(made.weight, 0.1 + rank);
  return made;
}

function fill(tensor: Tensor, value: number): void {
  const { device } = tensor;
  device.scope(() =>
    device.noGrad(() => device.copyInto(tensor, device.full(tensor.shape, value))),
  );
}

function input(device: Device, rank: number): Tensor {
  const values = Float32Array.from({ length: 2 * DIM }, (_, i) => Math.sin(i + 3 * rank));
  return device.tensor(values, [2, DIM]);
}

function step(model: Module, { rank, device }: Rank): Promise<void> {
  return device.scope(async () => {
    const out: Tensor = await model.call(input(device, rank));
    await mean(square(out)).backward();
  });
}

/** Returns the values of all parameters and buffers, one after the other. */
async function valuesOf(module: Module): Promise<number[]> {
  const named = [...module.namedParameters(), ...module.namedBuffers()];
  const values = await Promise.all(named.map(([, tensor]) => tensor.toArray()));
  return values.flatMap((array) => [...array]);
}

it.each([
  ['in training', false],
  ['in an evaluation', true],
])("a layer put in place of another after wrapping gets rank 0's values %s", async (_, isEval) => {
  const perRank = await onRanks(3, async (rank) => {
    const net = new Sequential(rank.device, [layer(rank), layer(rank)]);
    const model = wrap(net, rank);
    await step(model, rank);
    net.replaceChild('1', layer(rank));
    const before = rank.group.stats().broadcasts;
    if (isEval) {
      await rank.device.noGrad(() => model.eval().call(input(rank.device, rank.rank)));
    }
    const called = await valuesOf(net);
    model.train();
    const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
    for (let i = 0; i < 2; i++) {
      model.zeroGrad();
      await step(model, rank);
      await optimizer.step();
    }
    // There is one broadcast for its parameters, and one for the order of the buckets.
    expect(rank.group.stats().broadcasts - before).toBe(2);
    return { called, trained: await valuesOf(net) };
  });
  for (const { called, trained } of perRank) {
    expect(trained).toEqual(perRank[0]!.trained);
    if (isEval) {
      expect(called).toEqual(perRank[0]!.called);
    }
  }
  expect(perRank[0]!.trained[0]).not.toBe(perRank[0]!.called[0]);
});

it("frozen parameters and buffers that came later get rank 0's values too", async () => {
  const perRank = await onRanks(2, async (rank) => {
    const net = new Sequential(rank.device, [layer(rank), layer(rank)]);
    const model = wrap(net, rank);
    await step(model, rank);
    const norm = new BatchNorm1d(rank.device, { numFeatures: DIM });
    fill(norm.weight!, 5 + rank.rank);
    for (const [, buffer] of norm.namedBuffers()) {
      fill(buffer, 7 + rank.rank);
    }
    norm.weight!.requiresGrad = false;
    net.replaceChild('1', norm.eval());
    await step(model, rank);
    return valuesOf(net);
  });
  expect(perRank[1]).toEqual(perRank[0]);
  expect(perRank[0]).toEqual(expect.arrayContaining([5, 7]));
});

it('a layer of other shapes on a rank is an error on all of them', async () => {
  const errors = await errorsOnRanks(2, async (rank) => {
    const net = new Sequential(rank.device, [layer(rank), layer(rank)]);
    const model = wrap(net, rank);
    await step(model, rank);
    net.replaceChild('1', layer(rank, DIM + rank.rank));
    await step(model, rank);
  });
  for (const error of errors) {
    expect(error).toBeInstanceOf(DdpStructureError);
    expect((error as Error).message).toMatch(
      /added parameters and buffers of rank 0.*'1.weight f32 \[4, 4\]' on rank 0 and '1.weight f32 \[5, 4\]'/,
    );
  }
});

it('a layer on one rank alone is an error on all of them, that says so', async () => {
  const errors = await errorsOnRanks(2, async (rank) => {
    const net = new Sequential(rank.device, [layer(rank), layer(rank)]);
    const model = wrap(net, rank);
    await step(model, rank);
    if (rank.rank === 1) {
      net.replaceChild('1', layer(rank));
    }
    await step(model, rank);
  });
  for (const error of errors) {
    expect(error).toMatchObject({ code: 'MISMATCH' });
    expect((error as Error).message).toContain("'ddp added parameters and buffers'");
  }
});

it('a layer added in the middle of a join is refused', async () => {
  const errors = await errorsOnRanks(2, async (rank) => {
    const net = new Sequential(rank.device, [layer(rank), layer(rank)]);
    const model = wrap(net, rank);
    const body = async () => {
      await step(model, rank);
      net.replaceChild('1', layer(rank));
      await step(model, rank);
    };
    await model.join(body, { optimizers: [] });
  });
  expect(errors.map((error) => (error as { code?: string }).code)).toContain('DDP_STATE');
  for (const error of errors) {
    expect((error as Error).message).toContain('outside join');
  }
});

it('a layer of a group of one rank is trained as any other', async () => {
  await onRanks(1, async (rank) => {
    const net = new Sequential(rank.device, [layer(rank), layer(rank)]);
    const model = wrap(net, rank);
    await step(model, rank);
    net.replaceChild('1', layer(rank));
    await step(model, rank);
    for (const { grad } of net.parameters()) {
      expect(grad).toBeDefined();
    }
  });
});
