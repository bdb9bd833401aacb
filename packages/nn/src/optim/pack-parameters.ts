// Moves a module's parameters into one flat storage, so that a step, zeroing and the norm are one
// dispatch each. What sharding does over ranks, on one device.

import { type Storage, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import { FlatGradient } from '../flat/flat-gradient.js';
import { flatLayout } from '../flat/flat-layout.js';
import type { Module } from '../module.js';

/** The owner of packed parameters: dispose it after the module. */
export interface PackedParameters extends Disposable {
  /** [elements], f32, padding included; `grad` holds all gradients, zeros in the padding. */
  readonly flat: Tensor;
  dispose(): void;
}

/**
 * Packs all trainable parameters of a plain module; paths, shapes and values stay. Their gradients
 * arrive in `flat.grad`, no longer in each parameter's.
 * @throws {NnConfigError} where a parameter is not f32, has a gradient, or is sharded or packed
 */
export function packParameters(module: Module): PackedParameters {
  const named = module.namedParameters().filter(([, parameter]) => parameter.requiresGrad);
  named.forEach(([name, parameter]) => {
    requirePlain(name, parameter);
  });
  const leaves = named.map(([, parameter]) => parameter);
  const layout = flatLayout(leaves.map(({ size }) => size));
  const { device } = module;
  const flat = device.zeros([layout.elementCount], { tag: 'parameter', requiresGrad: true }).keep();
  flat.name = 'packed';
  const sink = new FlatGradient({
    device,
    layout,
    leaves,
    dtype: () => 'f32',
    earlier: () => flat.grad?.storage,
    onPass: (pass) => {
      pass.onEnd(() => hold(flat, sink.take()));
      pass.onFailure(() => sink.reset());
    },
  });
  leaves.forEach((parameter, i) => {
    const start = layout.offsets[i]!;
    moveInto(flat.storage, start, parameter);
    parameter.piece = { flat, start, length: parameter.size };
    parameter.gradSink = sink;
  });
  const dispose = () => {
    flat.grad?.dispose();
    flat.grad = undefined;
    flat.dispose();
  };
  return { flat, dispose, [Symbol.dispose]: dispose };
}

/** Makes a backward's sum the flat's gradient, which it is already where it went on with that. */
function hold(flat: Tensor, whole: Storage | undefined): void {
  if (whole !== undefined && flat.grad === undefined) {
    flat.grad = new Tensor(whole, [flat.size]).markKept();
  } else {
    whole?.release();
  }
}

function moveInto(storage: Storage, start: number, parameter: Tensor): void {
  const { device } = parameter;
  const before = parameter.storage;
  if (parameter.size > 0) {
    device.copyInto(new Tensor(storage, parameter.shape, start), parameter);
  }
  parameter.rebind(storage, start);
  before.release();
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
