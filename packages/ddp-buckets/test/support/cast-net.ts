// A small net whose matrices have any dtype.

import { type BatchNorm1d, Module } from '@shardweave/nn';
import { cast, type Device, type DType, linear, type Tensor, tanh } from '@shardweave/tensor-core';
import { DIM } from '../../../../tooling/test-kit/index.ts';

/**
 * This module has two matrices of one dtype, with products in f32: x [rows, DIM] to [rows, DIM]. A
 * batch norm may stand between them.
 */
export class CastNet extends Module<[x: Tensor], Tensor> {
  readonly #weights: readonly Tensor[];
  readonly #norm: BatchNorm1d | undefined;

  constructor(
    device: Device,
    dtype: DType,
    { norm, seed = 0 }: { readonly norm?: BatchNorm1d | undefined; readonly seed?: number } = {},
  ) {
    super(device);
    this.#weights = [0, 1].map((i) => {
      const values = Array.from(
        { length: DIM ** 2 },
        (_, j) => Math.sin(1 + j + 36 * i + seed) / 2,
      );
      return this.parameter(String(i), device.tensor(values, [DIM, DIM], { dtype }));
    });
    this.#norm = norm && this.child('norm', norm);
  }

  async forward(x: Tensor): Promise<Tensor> {
    const [first, last] = this.#weights.map((weight) => cast(weight, 'f32'));
    const hidden = linear(x, { weight: first! });
    return linear(tanh((await this.#norm?.call(hidden)) ?? hidden), { weight: last! });
  }
}
