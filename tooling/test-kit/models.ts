// Small models with inputs and a loss, which depend on no test runner.

import { Linear, Module } from '@shardweave/nn';
import { type Device, mean, square, type Tensor, tanh } from '@shardweave/tensor-core';

/** The width of `inputs` and `layer`. */
export const DIM = 6;

/** The rows of a global batch that one rank has. */
export interface Rows {
  readonly first: number;
  readonly count: number;
}

/** Returns the row of a batch of one row a rank. */
export function rowsOf({ rank }: { readonly rank: number }): Rows {
  return { first: rank, count: 1 };
}

/** Returns inputs [rows, DIM]. */
export function inputs(device: Device, rows: Rows, step = 0): Tensor {
  const values = Float32Array.from({ length: rows.count * DIM }, (_, i) =>
    Math.sin(i + 1 + rows.first * DIM + 100 * step),
  );
  return device.tensor(values, [rows.count, DIM]);
}

export function lossOf(output: Tensor): Tensor {
  return mean(square(output));
}

export function layer(device: Device): Linear {
  return new Linear(device, { inFeatures: DIM, outFeatures: DIM });
}

/** This module runs layers in a row, with tanh after each. */
export class Stack extends Module<[x: Tensor], Tensor> {
  /** The names of the layers that run, in this order. By default each runs once. */
  order: readonly string[];

  constructor(device: Device, layers: readonly Module[]) {
    super(device);
    layers.forEach((each, i) => {
      this.child(String(i), each);
    });
    this.order = [...this.children().keys()];
  }

  async forward(x: Tensor): Promise<Tensor> {
    let hidden = x;
    for (const name of this.order) {
      hidden = tanh(await this.children().get(name)!.call(hidden));
    }
    return hidden;
  }
}

type Parts = Readonly<Record<string, Module | Tensor>>;

/** The parts as they are when forward runs: a child may have been wrapped in the meantime. */
type Present<P extends Parts> = { readonly [K in keyof P]: P[K] extends Module ? Module : Tensor };

/**
 * Makes a module of named parts, whose forward is given as a function of them. A tensor becomes a
 * parameter; one that is another module's parameter is shared with it.
 */
export function moduleOf<P extends Parts, Args extends readonly unknown[], Output>(
  device: Device,
  parts: P,
  forward: (parts: Present<P>, ...args: Args) => Output | Promise<Output>,
): Module<Args, Output> {
  return new Composed(device, parts, forward);
}

class Composed<P extends Parts, Args extends readonly unknown[], Output> extends Module<
  Args,
  Output
> {
  readonly #forward: (parts: Present<P>, ...args: Args) => Output | Promise<Output>;

  constructor(
    device: Device,
    parts: P,
    forward: (parts: Present<P>, ...args: Args) => Output | Promise<Output>,
  ) {
    super(device);
    this.#forward = forward;
    for (const [name, part] of Object.entries(parts)) {
      if (part instanceof Module) {
        this.child(name, part);
      } else if (part.storage.tag === 'parameter') {
        this.sharedParameter(name, part);
      } else {
        this.parameter(name, part);
      }
    }
  }

  forward(...args: Args): Output | Promise<Output> {
    const present = Object.fromEntries([...this.children(), ...this.ownParameters()]);
    return this.#forward(present as Present<P>, ...args);
  }
}

/** Freezes the parameters with these names. By default all are frozen. */
export function freeze<M extends Module>(
  module: M,
  which: (name: string) => boolean = () => true,
): M {
  for (const [name, tensor] of module.namedParameters()) {
    if (which(name)) {
      tensor.requiresGrad = false;
    }
  }
  return module;
}

/** Runs forward, `lossOf` and backward on a step's rows, and returns the loss. */
export function trainOnce(model: Module, rows: Rows, step = 0): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: rows.first });
    const loss = lossOf(await model.call(inputs(device, rows, step)));
    await loss.backward();
    return loss.item();
  });
}

/** Runs forward without a graph, and returns the output's elements. */
export function outputOf(
  model: Module,
  rows: Rows = { first: 0, count: 1 },
  step = 0,
): Promise<Float32Array> {
  const { device } = model;
  return device.noGrad(() =>
    device.scope(async () => (await model.call(inputs(device, rows, step))).toArray()),
  );
}

/** Returns the loss of a forward without a graph. */
export function evaluate(model: Module, rows: Rows, step = 0): Promise<number> {
  const { device } = model;
  return device.noGrad(() =>
    device.scope(async () => lossOf(await model.call(inputs(device, rows, step))).item()),
  );
}
