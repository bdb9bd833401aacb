// This runs the same training once on a plain module and once with parts of it wrapped over several
// ranks, and compares losses and weights.

import { toF32Array } from '@shardweave/dtypes';
import { type FsdpOptions, FullyShardedDataParallel, isFsdp } from '@shardweave/fsdp';
import { Linear, Module, Sgd, stateDict } from '@shardweave/nn';
import {
  type Device,
  type MemoryBytes,
  mean,
  square,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { expect } from 'vitest';
import { onRanks } from './ranks.js';

export const DIM = 6;
const BATCH = 12; // 1, 2, 3 and 4 ranks divide it.

/** Wraps a module; in the plain run it returns the module itself. */
export type Wrap = <M extends Module>(module: M, options?: Partial<FsdpOptions>) => Module;

export interface Rows {
  readonly first: number;
  readonly count: number;
}

export interface Scenario {
  readonly build: (device: Device, wrap: Wrap) => Module;
  /** Runs one step's forwards and backwards, and returns the loss. The default is trainOnce. */
  readonly run?: (model: Module, rows: Rows, step: number) => Promise<number>;
  readonly steps?: number;
  readonly fsdp?: Partial<FsdpOptions>;
  /** The parameters that the optimizer gets. By default it gets all. */
  readonly optimized?: (model: Module) => readonly Tensor[];
}

/** This module runs layers in a row, with tanh after each. */
export class Stack extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, layers: readonly Module[]) {
    super(device);
    layers.forEach((layer, i) => {
      this.child(String(i), layer);
    });
  }

  async forward(x: Tensor): Promise<Tensor> {
    let hidden = x;
    for (const layer of this.children().values()) {
      hidden = tanh(await layer.call(hidden));
    }
    return hidden;
  }
}

export function layer(device: Device): Linear {
  return new Linear(device, { inFeatures: DIM, outFeatures: DIM });
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

export function trainOnce(model: Module, rows: Rows, step = 0): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: rows.first });
    const loss = lossOf(await model.call(inputs(device, rows, step)));
    await loss.backward();
    return loss.item();
  });
}

/** Returns whole weights by name, whatever is wrapped. A tied weight has its first name. */
export async function weightsOf(
  model: Module,
  seen: Set<Tensor> = new Set(),
): Promise<Map<string, Float32Array>> {
  const found = new Map<string, Float32Array>();
  if (isFsdp(model)) {
    for (const [name, { data, dtype }] of await stateDict(model)) {
      found.set(name, toF32Array(data.slice(), dtype));
    }
    return found;
  }
  for (const [name, tensor] of model.ownParameters()) {
    if (seen.has(tensor)) {
      continue;
    }
    seen.add(tensor);
    found.set(name, (await tensor.toArray()) as Float32Array);
  }
  for (const [name, child] of model.children()) {
    for (const [path, values] of await weightsOf(child, seen)) {
      found.set([model.childPrefix(name), path].filter((part) => part !== '').join('.'), values);
    }
  }
  return found;
}

export interface Outcome {
  readonly losses: number[];
  readonly weights: Map<string, Float32Array>;
  readonly live: MemoryBytes;
}

async function outcome(
  scenario: Scenario,
  options: { readonly device: Device; readonly wrap: Wrap; readonly rows: Rows },
): Promise<Outcome> {
  const model = scenario.build(options.device, options.wrap);
  const optimizer = new Sgd(scenario.optimized?.(model) ?? model.parameters(), { lr: 0.5 });
  const losses: number[] = [];
  for (let step = 0; step < (scenario.steps ?? 3); step++) {
    losses.push(await (scenario.run ?? trainOnce)(model, options.rows, step));
    await optimizer.step();
    optimizer.zeroGrad();
  }
  const live = options.device.memory().live;
  return { losses, weights: await weightsOf(model), live };
}

export async function plainOutcome(scenario: Scenario): Promise<Outcome> {
  const rows = { first: 0, count: BATCH };
  const [plain] = await onRanks(1, ({ device }) =>
    outcome(scenario, { device, wrap: (module) => module, rows }),
  );
  return plain!;
}

export async function shardedOutcome(scenario: Scenario, worldSize: number): Promise<Outcome> {
  const count = BATCH / worldSize;
  const perRank = await onRanks(worldSize, ({ device, group, rank }) =>
    outcome(scenario, {
      device,
      rows: { first: rank * count, count },
      wrap: (module, options) =>
        new FullyShardedDataParallel(module, {
          processGroup: group,
          ...scenario.fsdp,
          ...options,
        }),
    }),
  );
  const losses = perRank[0]!.losses.map(
    (_, step) => perRank.reduce((sum, rank) => sum + rank.losses[step]!, 0) / worldSize,
  );
  for (const { live } of perRank) {
    expect(live).toMatchObject({ gradient: 0, staging: 0, activation: 0 });
  }
  return { losses, weights: perRank[0]!.weights, live: perRank[0]!.live };
}

/** Expects the plain run's losses and weights within a tolerance for f32. */
export async function expectEqualTraining(scenario: Scenario, worldSize: number): Promise<Outcome> {
  const plain = await plainOutcome(scenario);
  const sharded = await shardedOutcome(scenario, worldSize);
  expectClose(sharded, plain, 2e-6);
  return sharded;
}

export function expectClose(actual: Outcome, expected: Outcome, tolerance: number): void {
  actual.losses.forEach((loss, step) => {
    expect(Math.abs(loss - expected.losses[step]!), `loss of step ${step}`).toBeLessThanOrEqual(
      tolerance,
    );
  });
  expect([...actual.weights.keys()].sort()).toEqual([...expected.weights.keys()].sort());
  for (const [name, values] of actual.weights) {
    values.forEach((value, i) => {
      const wanted = expected.weights.get(name)![i]!;
      if (!(Math.abs(value - wanted) <= tolerance)) {
        expect.fail(`${name}[${i}]: expected ${wanted}, got ${value}`);
      }
    });
  }
}
