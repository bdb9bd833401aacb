// The rows of one step, each computed alone with the weights before the step: what it adds to the
// step's loss and gradients, and how large activations become. The weights stay as they are.

import type { Module } from '@shardweave/nn';
import { isTensor, type Tensor } from '@shardweave/tensor-core';
import { type AnyBatch, cutRows, targetsIn, tokensIn } from '../../data/cut-rows.js';
import { rowsOf } from '../../data/row-order.js';
import type { RowTold } from '../events.js';
import { groupOf, layerNorms } from './layer-norms.js';
import type { TrainingStepOptions } from './training-step.js';

export interface ReplayRowsOptions extends TrainingStepOptions {
  /** The scale that the losses of the step have. */
  readonly lossScale: number;
  /** Called on the rank that has the row. */
  readonly onRow: (row: RowTold) => void;
}

/**
 * Computes each row of step `step` (from 0) alone. Collective: ranks without the row take part as
 * those without rows do in a step.
 */
export async function replayRows(options: ReplayRowsOptions, step: number): Promise<void> {
  const { config, rank, strategy, data, lossScale, onRow } = options;
  const numTargets = await data.numTargets(step);
  if (numTargets === 0) {
    return; // every rank knows it from the data, and no row says anything
  }
  const largest = new LargestActivations(strategy.module);
  try {
    for (let owner = 0; owner < config.ranks; owner++) {
      for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
        const { first, end } = rowsOf({ ...config, rank: owner, microStep });
        for (let row = 0; row < end - first; row++) {
          largest.forget();
          const place = { microStep, row: rank === owner ? row : undefined };
          const { loss, alone } = await rowAlone(options, step, place, numTargets);
          const { norm, groups } = await layerNorms(strategy.module);
          strategy.optimizer.zeroGrad();
          if (rank === owner) {
            onRow({
              row: first + row,
              origin: data.originOf(step, first + row),
              loss: loss / targetsIn(alone),
              targets: targetsIn(alone),
              gradNorm: norm / lossScale,
              layers: Object.fromEntries([...groups].map(([name, own]) => [name, own / lossScale])),
              activations: Object.fromEntries(largest.values),
              tokens: tokensIn(alone),
            });
          }
        }
      }
    }
  } finally {
    largest.stop();
  }
}

/**
 * Adds up the gradients of one row, or of none on a rank that does not have it. With groups of rows
 * a step has all of its calls, and the row is in one of them.
 */
async function rowAlone(
  { config, rank, device, strategy, data, lossScale }: ReplayRowsOptions,
  step: number,
  place: { readonly microStep: number; readonly row: number | undefined },
  numTargets: number,
): Promise<{ readonly loss: number; readonly alone: AnyBatch }> {
  const { microStep, row } = place;
  const isWhole = config.gradientGroups !== undefined;
  const calls = isWhole ? Array.from({ length: data.numMicroSteps }, (_, i) => i) : [microStep];
  let found: { readonly loss: number; readonly alone: AnyBatch } | undefined;
  for (const call of calls) {
    const has = call === microStep && row !== undefined;
    const cut = has ? { first: row, end: row + 1 } : { first: 0, end: 0 };
    const own: AnyBatch = await data.microBatch(step, rank, call);
    const alone = cutRows(own, { ...cut, seq: config.seq });
    const loss = await device.scope(async () => {
      device.random.begin({ step, rowOffset: alone.firstRow });
      const scale = lossScale / numTargets;
      const sum = await strategy.objective.backward(alone, { scale, onPhase: () => {} });
      return (await sum.toArray())[0]!; // figures may follow
    });
    found = found === undefined || has ? { loss, alone } : found;
  }
  return found!;
}

/** The largest magnitude that comes out of each block of a model, and of layers beside blocks. */
class LargestActivations {
  readonly values = new Map<string, number>();
  readonly #hooks: readonly (() => void)[];

  constructor(model: Module) {
    const layers = new Map<string, Module>();
    for (const [path, module] of model.namedModules('')) {
      const group = groupOf(`${path}.`);
      const isLayer = path === group || path.endsWith(`.${group}`);
      if (path !== '' && isLayer && !layers.has(group)) {
        layers.set(group, module);
      }
    }
    this.#hooks = [...layers].map(([group, module]) =>
      module.aroundForward({ after: (output) => this.#note(group || 'output', output) }),
    );
  }

  forget(): void {
    this.values.clear();
  }

  stop(): void {
    for (const remove of this.#hooks) {
      remove();
    }
  }

  async #note(group: string, output: unknown): Promise<void> {
    if (!isTensor(output) || output.size === 0) {
      return;
    }
    let most = this.values.get(group) ?? 0;
    for (const value of await (output as Tensor).toArray()) {
      most = Number.isNaN(value) ? value : Math.max(most, Math.abs(value));
    }
    this.values.set(group, most);
  }
}
