// How far a step moves the weights of each group of layers, as a share of their norm. No copy of
// the weights is kept for it: what AdamW has just done follows from its averages, in passes over a
// few megabytes at a time.

import { pow64 } from '@shardweave/dtypes/float64';
import type { AdamOptions, AdamW, Module } from '@shardweave/nn';
import { flatHomeOf } from '@shardweave/nn/flat';
import { add, affine, cast, type Device, div, mul, sqrt, Tensor } from '@shardweave/tensor-core';
import { groupsOf, layerNorms } from './layer-norms.js';

/** The most elements of a pass: 4 MiB of each of the few tensors that it makes. */
const PASS_ELEMENTS = 2 ** 20;

interface LayerUpdatesOptions {
  readonly device: Device;
  readonly module: Module;
  readonly optimizer: AdamW;
}

/** Elements of a flat. */
interface Run {
  readonly start: number;
  readonly length: number;
}

/** What a step has taken from some elements, and what they were before. */
interface Pass {
  readonly update: Tensor;
  readonly before: Tensor;
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
   * The norm of each group's update over that of its weights before it, by the sums of gradNorm, so
   * that neither shards nor ranks show. Gradients are lost: what is summed takes their place. A
   * group of which something rests off the device has none, for its averages would have to come
   * back. Collective.
   */
  async ratios(): Promise<ReadonlyMap<string, number>> {
    const isAway = ({ piece }: Tensor) => piece && flatHomeOf(piece.flat) !== undefined;
    const away = new Set(
      [...this.#groups].flatMap(([parameter, name]) => (isAway(parameter) ? name : [])),
    );
    if ([...this.#groups.values()].every((name) => away.has(name))) {
      return new Map();
    }
    const updates = await this.#norms(({ update }) => update);
    const weights = await this.#norms(({ before }) => before);
    const all = [...updates].map(([name, norm]) => [name, norm / weights.get(name)!] as const);
    // New adapters are zeros.
    return new Map(all.filter(([name, ratio]) => !away.has(name) && Number.isFinite(ratio)));
  }

  /** The norms of what `of` takes of each pass, by group. */
  async #norms(of: (pass: Pass) => Tensor): Promise<ReadonlyMap<string, number>> {
    const { device, module, optimizer } = this.#options;
    for (const { params, ...options } of optimizer.groups) {
      for (const parameter of params) {
        const { grad } = parameter.piece?.flat ?? parameter;
        const { start, length } = parameter.piece ?? { start: 0, length: parameter.size };
        for (let done = 0; grad !== undefined && done < length; done += PASS_ELEMENTS) {
          const run = { start: start + done, length: Math.min(PASS_ELEMENTS, length - done) };
          device.noGrad(() =>
            device.scope(() => {
              device.copyInto(partOf(grad, run), of(this.#pass(parameter, run, options)));
            }),
          );
        }
      }
    }
    return (await layerNorms(module)).groups;
  }

  #pass(parameter: Tensor, run: Run, { lr, betas, eps, weightDecay }: AdamOptions): Pass {
    const { optimizer } = this.#options;
    const { flat } = parameter.piece ?? { flat: parameter };
    const weights = cast(partOf(flat, run), 'f32');
    const steps = stepsOf(parameter, optimizer);
    if (steps === this.#stepsBefore.get(parameter) || lr === 0) {
      return { update: parameter.device.zeros([run.length]), before: weights };
    }
    const { tensors } = optimizer.stateOf(flat)!;
    const [correction1, correction2] = betas.map((beta) => 1 - pow64(beta, steps)) as [
      number,
      number,
    ];
    // Adam's part is lr * m / correction1 / (sqrt(v / correction2) + eps), and what the weights
    // were is (weights + that) / (1 - lr * weightDecay).
    const rate = lr / correction1;
    const root = sqrt(partOf(tensors.get('expAvgSq')!, run));
    const divisor = affine(root, 1 / (Math.sqrt(correction2) * rate), eps / rate);
    const moved = div(partOf(tensors.get('expAvg')!, run), divisor);
    const decay = lr * weightDecay;
    const before = mul(add(weights, moved), 1 / (1 - decay));
    const update = decay === 0 ? moved : add(moved, mul(before, decay));
    return { update, before };
  }
}

function partOf({ storage, offset }: Tensor, { start, length }: Run): Tensor {
  return new Tensor(storage, [length], offset + start);
}

function stepsOf(parameter: Tensor, optimizer: AdamW): number {
  const state = optimizer.stateOf(parameter.piece?.flat ?? parameter);
  return state?.progressOf(parameter).step ?? 0;
}
