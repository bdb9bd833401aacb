// Moves a module's parameters into one flat storage, so that a step, clearing the gradients and
// their norm take one dispatch each. It does on one device what sharding does over ranks.

import { type Storage, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { FlatGradient } from '../flat/flat-gradient.js';
import { FlatParameter } from '../flat/flat-parameter.js';
import { flatLayout } from '../flat/layout/flat-layout.js';
import type { Module } from '../module.js';

/** The owner of packed parameters. Dispose it after the module. */
export interface PackedParameters extends Disposable {
  /**
   * All packed parameters in one tensor, f32 [elements], with padding between them. Its `grad`
   * holds all gradients, and zeros in the padding.
   */
  readonly flat: Tensor;
  dispose(): void;
}

/**
 * Packs all trainable parameters of a plain module into one flat tensor. Their paths, shapes and
 * values stay. Their gradients then arrive in `flat.grad` instead of each parameter's `grad`.
 * @throws {NnConfigError} for a parameter that is not f32, has a gradient, or is already sharded or
 * packed
 */
export function packParameters(module: Module): PackedParameters {
  const parameters = module
    .namedParameters()
    .filter(([, tensor]) => tensor.requiresGrad)
    .map(([path, tensor]) => ({ path, tensor }));
  for (const { path, tensor } of parameters) {
    requirePlain(path, tensor);
  }
  const leaves = parameters.map(({ tensor }) => tensor);
  const layout = flatLayout(leaves.map(({ size }) => size));
  const packed = new FlatParameter({ name: 'packed', parameters, layout, device: module.device });
  const { flat } = packed;
  const sink = new FlatGradient({
    device: module.device,
    layout,
    leaves,
    dtype: () => 'f32',
    earlier: () => flat.grad?.storage,
    onPass: (pass) => {
      pass.onEnd(() => hold(flat, sink.take()));
      pass.onFailure(() => sink.reset());
    },
  });
  packed.takeOverHere();
  for (const leaf of leaves) {
    leaf.gradSink = sink;
  }
  const dispose = () => packed.dispose();
  return { flat, dispose, [Symbol.dispose]: dispose };
}

/**
 * Makes the sum of a backward the flat's gradient. Where backward continued the gradient that the
 * flat had, the sum is that gradient already.
 */
function hold(flat: Tensor, whole: Storage | undefined): void {
  if (whole !== undefined && flat.grad === undefined) {
    flat.grad = new Tensor(whole, [flat.size]).markKept();
  } else {
    whole?.release();
  }
}

function requirePlain(name: string, parameter: Tensor): void {
  const problem =
    parameter.dtype !== 'f32'
      ? `is ${parameter.dtype}, not f32`
      : parameter.piece !== undefined || parameter.gradSink !== undefined
        ? 'is sharded or packed already'
        : parameter.grad !== undefined
          ? 'has a gradient; call zeroGrad first'
          : undefined;
  if (problem !== undefined) {
    throw new NnConfigError(`packParameters: '${name}' ${problem}.`);
  }
}
