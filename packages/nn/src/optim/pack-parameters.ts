// Moves a module's parameters into one flat storage, so that a step, zeroing and the norm are one
// dispatch each. What sharding does over ranks, on one device.

import { type GradSink, type Storage, Tensor } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import type { Module } from '../module.js';

/** Views start at multiples of 256 bytes: the binding alignment of WebGPU, in f32 elements. */
const ALIGNMENT = 64;

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
  const starts: number[] = [];
  let elementCount = 0;
  for (const [, { size }] of named) {
    starts.push(elementCount);
    elementCount += Math.ceil(size / ALIGNMENT) * ALIGNMENT;
  }
  const { device } = module;
  const flat = device.zeros([elementCount], { tag: 'parameter', requiresGrad: true }).keep();
  flat.name = 'packed';
  const sink = new FlatGradSink(flat);
  named.forEach(([, parameter], i) => {
    const start = starts[i]!;
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

/** Adds gradients up in one flat tensor, made with zeros when the first one arrives. */
class FlatGradSink implements GradSink {
  readonly #flat: Tensor;

  constructor(flat: Tensor) {
    this.#flat = flat;
  }

  accept(leaf: Tensor, gradient: Tensor): void {
    const flat = this.#flat;
    const { device } = flat;
    flat.grad ??= device.zeros([flat.size], { tag: 'gradient' }).keep();
    if (leaf.size === 0) {
      return;
    }
    device.addInPlace(new Tensor(flat.grad.storage, leaf.shape, leaf.piece!.start), gradient);
  }

  final(): void {}
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
