// How far a step moves the weights of each group of layers, as a share of their norm. No copy of
// the weights is kept for it: what AdamW has just done follows from its averages, in passes over a
// few megabytes at a time.

import type { ProcessGroup } from '@shardweave/collectives';
import { pow64 } from '@shardweave/dtypes/float64';
import type { AdamOptions, AdamW, Module } from '@shardweave/nn';
import { flatHomeOf } from '@shardweave/nn/flat';
import {
  add,
  affine,
  cast,
  cat,
  type Device,
  div,
  mul,
  reshape,
  sqrt,
  square,
  sum,
  Tensor,
} from '@shardweave/tensor-core';
import { sumAllOverRanks } from '../strategies/sum-over-ranks.js';
import { groupsOf } from './layer-norms.js';

/** The most elements of a pass: 4 MiB of each of the few tensors that it makes. */
const PASS_ELEMENTS = 2 ** 20;

interface LayerUpdatesOptions {
  readonly device: Device;
  readonly module: Module;
  readonly optimizer: AdamW;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
}

/** The updates of one step; made before it. */
export class LayerUpdates {
  readonly #options: LayerUpdatesOptions;
  /** The trained parameters with their groups of layers, alike on all ranks. */
  readonly #groups: ReadonlyMap<Tensor, string>;
  readonly #stepsBefore: ReadonlyMap<Tensor, number>;

  constructor(options: LayerUpdatesOptions) {
    this.#options = options;
    const { module, optimizer } = options;
    const trained = optimizer.groups.flatMap(({ params }) => params);
    const steps = trained.map((parameter) => [parameter, stepsOf(parameter, optimizer)] as const);
    this.#stepsBefore = new Map(steps);
    this.#groups = groupsOf(module, this.#stepsBefore);
  }

  /**
   * The norm of each group's update over that of its weights before it. A group of which something
   * rests off the device has none: its averages would have to come back. Collective where ranks
   * have parts of parameters.
   */
  async ratios(): Promise<ReadonlyMap<string, number>> {
    const { device, group } = this.#options;
    const groups = [...this.#groups];
    const away = groups.filter(([{ piece }]) => piece && flatHomeOf(piece.flat) !== undefined);
    const names = new Set(groups.map(([, name]) => name));
    for (const [, name] of away) {
      names.delete(name);
    }
    const squares = await device.scope(() => device.noGrad(() => this.#squares([...names])));
    if (groups.some(([parameter]) => isSharded(parameter))) {
      await sumAllOverRanks(squares, group, 'updates');
    }
    const ratio = (i: number) => Math.sqrt(squares[2 * i]! / squares[2 * i + 1]!);
    const all = [...names].map((name, i) => [name, ratio(i)] as const);
    return new Map(all.filter(([, value]) => Number.isFinite(value))); // new adapters are zeros
  }

  /** What this rank adds for each group: squares of the update and of the weights before it. */
  async #squares(names: readonly string[]): Promise<Float32Array> {
    const { device, optimizer } = this.#options;
    const sums = names.flatMap(() => [device.zeros([1]), device.zeros([1])]);
    for (const { params, ...options } of optimizer.groups) {
      for (const parameter of params) {
        const at = 2 * names.indexOf(this.#groups.get(parameter)!);
        const { start, length } = parameter.piece ?? { start: 0, length: parameter.size };
        for (let done = 0; at >= 0 && done < length; done += PASS_ELEMENTS) {
          const run = { start: start + done, length: Math.min(PASS_ELEMENTS, length - done) };
          const found = device.scope(() => this.#pass(parameter, run, options));
          found.forEach((squares, i) => {
            sums[at + i] = add(sums[at + i]!, squares);
          });
        }
      }
    }
    if (sums.length === 0) {
      return new Float32Array();
    }
    return new Float32Array((await cat(sums, { axis: 0 }).toBytes()).slice().buffer);
  }

  #pass(
    parameter: Tensor,
    { start, length }: { readonly start: number; readonly length: number },
    { lr, betas, eps, weightDecay }: AdamOptions,
  ): [update: Tensor, weights: Tensor] {
    const { optimizer } = this.#options;
    const { flat } = parameter.piece ?? { flat: parameter };
    const part = ({ storage, offset }: Tensor) => new Tensor(storage, [length], offset + start);
    const squares = (x: Tensor) => reshape(sum(square(x)), [1]);
    const weights = cast(part(flat), 'f32');
    const steps = stepsOf(parameter, optimizer);
    if (steps === this.#stepsBefore.get(parameter) || lr === 0) {
      return [parameter.device.zeros([1]), squares(weights)];
    }
    const { tensors } = optimizer.stateOf(flat)!;
    const [correction1, correction2] = betas.map((beta) => 1 - pow64(beta, steps)) as [
      number,
      number,
    ];
    // Adam's part is lr * m / correction1 / (sqrt(v / correction2) + eps), and what the weights
    // were is (weights + that) / (1 - lr * weightDecay).
    const rate = lr / correction1;
    const root = sqrt(part(tensors.get('expAvgSq')!));
    const divisor = affine(root, 1 / (Math.sqrt(correction2) * rate), eps / rate);
    const moved = div(part(tensors.get('expAvg')!), divisor);
    const decay = lr * weightDecay;
    const before = mul(add(weights, moved), 1 / (1 - decay));
    const update = decay === 0 ? moved : add(moved, mul(before, decay));
    return [squares(update), squares(before)];
  }
}

function stepsOf(parameter: Tensor, optimizer: AdamW): number {
  const state = optimizer.stateOf(parameter.piece?.flat ?? parameter);
  return state?.progressOf(parameter).step ?? 0;
}

function isSharded({ piece }: Tensor): boolean {
  return (piece?.numShards ?? 1) > 1;
}
