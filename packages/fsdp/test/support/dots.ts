// The gradients of these modules are known exactly: the gradient of a weight is the input that it
// is multiplied by.

import { type FullyShardedDataParallel, isFsdp } from '@shardweave/fsdp';
import { Module } from '@shardweave/nn';
import { add, type Device, linear, sum, type Tensor } from '@shardweave/tensor-core';

/** This module multiplies an input [1, length] by its weight [length, 1]. */
export class Dot extends Module<[x: Tensor], Tensor> {
  readonly weight: Tensor;

  constructor(device: Device, length: number, value = 0.5) {
    super(device);
    this.weight = this.parameter('weight', device.full([length, 1], value));
  }

  forward(x: Tensor): Tensor {
    return sum(linear(x, { weight: this.weight }));
  }
}

/** This module adds up the outputs of its chosen parts. */
export class Dots extends Module<[x: Tensor], Tensor> {
  chosen: readonly number[];
  /** Parts that run, but whose output is detached. */
  detached: readonly number[] = [];

  constructor(device: Device, parts: readonly Module[]) {
    super(device);
    this.chosen = parts.map((_, i) => i);
    parts.forEach((part, i) => {
      this.child(String(i), part);
    });
  }

  async forward(x: Tensor): Promise<Tensor> {
    const outputs: Tensor[] = [];
    for (const [name, part] of this.children()) {
      if (!this.chosen.includes(Number(name))) {
        continue;
      }
      const output = (await part.call(x)) as Tensor;
      outputs.push(this.detached.includes(Number(name)) ? output.detach() : output);
    }
    return outputs.reduce((left, right) => add(left, right));
  }
}

/** Runs backward of the model's output for an input of equal elements. */
export function backwardOf(model: Module, length: number, value: number): Promise<void> {
  const { device } = model;
  return device.scope(async () => {
    await ((await model.call(device.full([1, length], value))) as Tensor).backward();
  });
}

/** Returns the first element of each unit's gradient shard, undefined where there is none. */
export async function firstGradients(model: Module): Promise<(number | undefined)[]> {
  const instances = model.namedModules().flatMap(([, module]) => (isFsdp(module) ? [module] : []));
  const flats = instances.flatMap(({ units }: FullyShardedDataParallel) =>
    units.map(({ flat }) => flat),
  );
  return Promise.all(flats.map(async ({ grad }) => grad && (await grad.toArray())[0]));
}
