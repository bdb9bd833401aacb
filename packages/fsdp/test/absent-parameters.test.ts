// If a parameter is used while it is not gathered, the error names its flat parameter and says what
// to do.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { Linear, Module, ModuleList } from '@shardweave/nn';
import { type Device, matmul, mean, square, type Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { DIM, inputs, layer, onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

interface Outputs {
  readonly y: Tensor;
  readonly auxiliary: Tensor | undefined;
}

/**
 * This layer has a loss of its own, as a balanced mixture of experts does. The loss is kept in a
 * field or returned.
 */
class WithAuxiliary extends Module<[x: Tensor], Outputs> {
  readonly inner: Linear;
  kept: Tensor | undefined;
  isReturning = false;

  constructor(device: Device) {
    super(device);
    this.inner = this.child('inner', new Linear(device, { inFeatures: DIM, outFeatures: DIM }));
  }

  async forward(x: Tensor): Promise<Outputs> {
    const { weight } = this.inner;
    const y = await this.inner.call(x);
    const auxiliary = mean(square(matmul(x.detach(), matmul(weight, weight))));
    if (this.isReturning) {
      return { y, auxiliary };
    }
    this.kept = auxiliary.keep();
    return { y, auxiliary: undefined };
  }
}

class Around extends Module<[x: Tensor], Outputs> {
  readonly part: Module<[x: Tensor], Outputs>;

  constructor(device: Device, part: Module<[x: Tensor], Outputs>) {
    super(device);
    this.part = this.child('part', part);
  }

  forward(x: Tensor): Promise<Outputs> {
    return this.part.call(x);
  }
}

function withAuxiliary({ device, group }: Rank) {
  const part = new WithAuxiliary(device);
  const wrapped = new FullyShardedDataParallel(part, { processGroup: group, name: 'part' });
  const model = new FullyShardedDataParallel(new Around(device, wrapped), { processGroup: group });
  return { part, wrapped, model };
}

it.each([1, 2])('a loss that is returned trains, world size %i', (worldSize) =>
  onRanks(worldSize, async (rank) => {
    const { model, part, wrapped } = withAuxiliary(rank);
    part.isReturning = true;
    await rank.device.scope(async () => {
      const { auxiliary } = await model.call(inputs(rank.device, { first: 0, count: 2 }));
      await auxiliary!.backward();
    });
    expect(wrapped.units[0]!.flat.grad).toBeDefined();
  }),
);

it('a loss kept in a field is an error that says why', () =>
  onRanks(2, async (rank) => {
    const { model, part } = withAuxiliary(rank);
    await rank.device.scope(async () => {
      await model.call(inputs(rank.device, { first: 0, count: 2 }));
      const failure = part.kept!.backward();
      await expect(failure).rejects.toThrow(
        /not on the device\. Flat parameter 'part' .* return it with the other results/,
      );
      part.kept!.dispose();
    });
  }));

it('a wrapped list, which nobody calls, is an error that says so', () =>
  onRanks(2, async ({ device, group }) => {
    const inner = layer(device);
    const list = wrapIn({ group })(new ModuleList(device, [inner]), 'list');
    await list.initialize();
    const x = inputs(device, { first: 0, count: 2 });
    await expect(device.scope(() => inner.call(x))).rejects.toThrow(
      /'list' .* wrapped list is never called: wrap the modules in it/,
    );
  }));
