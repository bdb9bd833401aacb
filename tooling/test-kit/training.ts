// Runs a program in one process and over ranks, wrapped, and compares what both end with.

import { type Module, type Optimizer, Sgd } from '@shardweave/nn';
import type { Backend, Device, MemoryBytes } from '@shardweave/tensor-core';
import { expect } from 'vitest';
import { expectClose, TOLERANCE } from './closeness.ts';
import { type Rows, trainOnce } from './models.ts';
import { onRanks, type Rank } from './ranks.ts';
import { type Weights, weightsOf } from './weights.ts';

/** Wraps a module with options of its own. In one process it returns the module itself. */
export type Wrap<Options = object> = <M extends Module>(module: M, options?: Options) => Module;

/** Where a program runs, and on which rows of the global batch. */
export interface Place<Options> {
  readonly device: Device;
  readonly wrap: Wrap<Options>;
  readonly rows: Rows;
}

export type Program<Result, Options = object> = (place: Place<Options>) => Promise<Result>;

/** A program over ranks: how each wraps, and what they share. */
export interface OverRanks<Options = object> {
  readonly ranks: number;
  readonly wrap: (rank: Rank) => Wrap<Options>;
  /** The rows of the global batch, which the ranks share evenly. */
  readonly batch?: number;
  readonly backend?: Backend;
}

/** How each rank's program ends: its losses, and the weights of each of its models. */
export interface Trained {
  readonly losses: readonly number[];
  readonly weights: readonly Weights[];
}

/** A batch that 1, 2, 3, 4 and 6 ranks share evenly. */
const BATCH = 12;

/** Runs a program unwrapped on the whole batch, and returns its result. */
export async function trainAlone<Result, Options>(
  program: Program<Result, Options>,
  { batch = BATCH, backend }: Partial<OverRanks<Options>> = {},
): Promise<Result> {
  const [result] = await onRanks(
    1,
    ({ device }) => program({ device, wrap: (module) => module, rows: { first: 0, count: batch } }),
    backend && { backend },
  );
  return result!;
}

/** Runs a program on each rank's rows, and returns the results in rank order. */
export function trainAs<Result, Options>(
  program: Program<Result, Options>,
  { ranks, wrap, batch = BATCH, backend }: OverRanks<Options>,
): Promise<Result[]> {
  const count = batch / ranks;
  return onRanks(
    ranks,
    async (rank) => {
      const rows = { first: rank.rank * count, count };
      const result = await program({ device: rank.device, wrap: wrap(rank), rows });
      expect(rank.device.memory().live).toMatchObject(NOTHING_LEFT);
      return result;
    },
    backend && { backend },
  );
}

/** What a step leaves of what it needs for itself. */
const NOTHING_LEFT: Partial<MemoryBytes> = { gradient: 0, staging: 0, activation: 0 };

/**
 * Expects the ranks' mean losses and each rank's weights to be those of one process, and returns
 * rank 0's.
 */
export async function expectTrainedAsOneProcess<Options>(
  program: Program<Trained, Options>,
  { tolerance = TOLERANCE.f32, ...over }: OverRanks<Options> & { readonly tolerance?: number },
): Promise<Trained> {
  const alone = await trainAlone(program, over);
  const perRank = await trainAs(program, over);
  expectAsAlone(perRank, alone, tolerance);
  return perRank[0]!;
}

/** Expects the ranks' mean losses and each rank's weights near those of one process. */
export function expectAsAlone(
  perRank: readonly Trained[],
  alone: Trained,
  tolerance: number = TOLERANCE.f32,
): void {
  expectClose(meanLosses(perRank), alone.losses, tolerance, 'loss of step ');
  for (const { weights } of perRank) {
    for (const [index, each] of weights.entries()) {
      expectClose(each, alone.weights[index]!, tolerance);
    }
  }
}

/** Expects the same losses and weights on each rank, bit for bit. */
export function expectEqualBits(actual: readonly Trained[], expected: readonly Trained[]): void {
  expect(actual).toHaveLength(expected.length);
  for (const [rank, { losses, weights }] of actual.entries()) {
    const other = expected[rank]!;
    expect(losses).toEqual(other.losses);
    for (const [index, each] of weights.entries()) {
      expect([...each.keys()].sort()).toEqual([...other.weights[index]!.keys()].sort());
      for (const [name, values] of each) {
        const pair = [values, other.weights[index]!.get(name)!];
        const [a, b] = pair.map((one) => Buffer.from(one.buffer, one.byteOffset, one.byteLength));
        expect(Buffer.compare(a!, b!), `${name} on rank ${rank}`).toBe(0);
      }
    }
  }
}

/** Returns the losses over all ranks' rows, which are as many on each. */
export function meanLosses(perRank: readonly Trained[]): number[] {
  return perRank[0]!.losses.map(
    (_, step) => perRank.reduce((sum, { losses }) => sum + losses[step]!, 0) / perRank.length,
  );
}

/** A model and its steps, for programs that train one model with one optimizer. */
export interface ModelProgram<Options = object> {
  readonly build: (device: Device, wrap: Wrap<Options>) => Module;
  /** Runs one step's forwards and backwards, and returns the loss. The default is trainOnce. */
  readonly run?: (model: Module, rows: Rows, step: number) => Promise<number>;
  readonly steps?: number;
  /** By default plain steps of SGD with a learning rate of 0.5 over all parameters. */
  readonly optimizer?: (model: Module) => Optimizer<object>;
}

/** Makes the program that trains a model, by default for three steps. */
export function training<Options>({
  build,
  run = trainOnce,
  steps = 3,
  optimizer = (model) => new Sgd(model.parameters(), { lr: 0.5 }),
}: ModelProgram<Options>): Program<Trained, Options> {
  return async ({ device, wrap, rows }) => {
    const model = build(device, wrap);
    const losses = await stepped(optimizer(model), steps, (step) => run(model, rows, step));
    return { losses, weights: [await weightsOf(model)] };
  };
}

/**
 * Runs each step, or as many as are said, with the optimizer's step behind it, and returns what the
 * runs return, which is mostly a loss.
 */
export async function stepped<Loss>(
  optimizer: Pick<Optimizer<object>, 'step' | 'zeroGrad'>,
  steps: readonly number[] | number,
  run: (step: number) => Promise<Loss>,
): Promise<Loss[]> {
  const losses: Loss[] = [];
  for (const step of typeof steps === 'number' ? Array(steps).keys() : steps) {
    losses.push(await run(step));
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return losses;
}
