// This computes what sharded training does, in the plainest way: all parameters are gathered, the
// bare module runs, all gradients are reduced, and each rank steps its shard. There are no hooks,
// units, prefetch or buckets. The fast implementation must give the same.

import type { ProcessGroup } from '@shardweave/collectives';
import { type ShardLayout, shardLayout } from '@shardweave/fsdp';
import type { Module, Optimizer } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';

export interface TwinOptions {
  readonly group: ProcessGroup;
  readonly predivide: number;
  /** Makes the optimizer of one leaf, [shardLength] f32, whose `grad` is set. */
  optimizer(shard: Tensor): Optimizer<object>;
}

export class NaiveTwin {
  readonly #module: Module;
  readonly #options: TwinOptions;
  readonly #layout: ShardLayout;
  readonly #shard: Tensor;
  readonly #optimizer: Optimizer<object>;

  /** @param module a plain module with equal values on all ranks */
  static async create(module: Module, options: TwinOptions): Promise<NaiveTwin> {
    const twin = new NaiveTwin(module, options);
    const whole = await twin.#flat(module.parameters());
    twin.#shard.storage.write(new Uint8Array(twin.#own(whole).slice().buffer));
    return twin;
  }

  private constructor(module: Module, options: TwinOptions) {
    this.#module = module;
    this.#options = options;
    const sizes = module.parameters().map(({ size }) => size);
    this.#layout = shardLayout(sizes, options.group.worldSize);
    const shape = [this.#layout.shardLength];
    this.#shard = module.device.zeros(shape, { tag: 'parameter', requiresGrad: true }).keep();
    this.#optimizer = options.optimizer(this.#shard);
  }

  /** @param backward runs the module forward and backward on this rank's rows */
  async step(backward: () => Promise<number>): Promise<number> {
    const { group, predivide } = this.#options;
    const { device } = this.#module;
    const whole = await this.gather();
    this.#module.parameters().forEach((parameter, i) => {
      const start = this.#layout.offsets[i]!;
      const values = whole.slice(start, start + parameter.size);
      parameter.storage.write(new Uint8Array(values.buffer), parameter.offset * 4);
    });
    const loss = await backward();
    const gradients = this.#module.parameters().map(({ grad }) => grad);
    const sent = (await this.#flat(gradients)).map((value) => value * Math.fround(1 / predivide));
    const received = new Float32Array(this.#layout.shardLength);
    await group.reduceScatter(new Uint8Array(sent.buffer), new Uint8Array(received.buffer), {
      dtype: 'f32',
      op: 'sum',
    });
    const postdivide = Math.fround(predivide / group.worldSize);
    const mean = received.map((value) => value * postdivide);
    this.#shard.grad = device.scope(() => device.tensor(mean, [mean.length]).keep());
    this.#module.zeroGrad();
    await this.#optimizer.step();
    this.#optimizer.zeroGrad();
    return loss;
  }

  /** Gathers all parameters, at the layout's offsets. */
  async gather(): Promise<Float32Array> {
    const whole = new Float32Array(this.#layout.shardLength * this.#layout.worldSize);
    const own = await this.#shard.storage.read();
    await this.#options.group.allGather(own, new Uint8Array(whole.buffer), { dtype: 'f32' });
    return whole;
  }

  async #flat(tensors: readonly (Tensor | undefined)[]): Promise<Float32Array> {
    const whole = new Float32Array(this.#layout.shardLength * this.#layout.worldSize);
    for (const [i, tensor] of tensors.entries()) {
      whole.set((await tensor?.toArray()) ?? [], this.#layout.offsets[i]!);
    }
    return whole;
  }

  #own(whole: Float32Array): Float32Array {
    const { shardLength } = this.#layout;
    const { rank } = this.#options.group;
    return whole.subarray(rank * shardLength, (rank + 1) * shardLength);
  }

  /** Returns the values of one parameter within the result of `gather`. */
  valuesOf(whole: Float32Array, index: number): Float32Array {
    const start = this.#layout.offsets[index]!;
    return whole.slice(start, start + this.#layout.sizes[index]!);
  }
}
