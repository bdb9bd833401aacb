// The loss of a module that people have written, on rows of its own or on those of the data.

import { add, affine, cast, isFloat, isTensor, type Tensor } from '@shardweave/tensor-core';
import { shown } from '@shardweave/tensor-core/options';
import { cutTokens } from '../../data/cut-rows.js';
import type { MicroBatch } from '../../data/dataset.js';
import type { OwnBatch } from '../../data/own-rows.js';
import { NO_TARGET } from '../../data/rows.js';
import type { OpenedOwnModel } from '../../own-model/open-own-model.js';
import type { OwnRows, TokenBatch } from '../../own-model/own-model.js';
import { inTheirCode, mistakeIn } from '../../own-model/their-code.js';
import { backwardOf, type ObjectiveOptions } from './language.js';
import type { BackwardOptions, Objective } from './objective.js';

export class OwnObjective implements Objective<OwnBatch | MicroBatch> {
  readonly #options: ObjectiveOptions;
  readonly #own: OpenedOwnModel;

  constructor(options: ObjectiveOptions, own: OpenedOwnModel) {
    this.#options = options;
    this.#own = own;
  }

  async backward(
    batch: OwnBatch | MicroBatch,
    { scale, onPhase }: BackwardOptions,
  ): Promise<Tensor> {
    onPhase('forward');
    const loss = await this.loss(batch);
    if (!loss.requiresGrad) {
      throw mistakeIn(
        this.#own.path,
        'loss: expected a loss that depends on trained parameters of the module, got one without a graph. Call the module that loss is given.',
      );
    }
    return backwardOf(loss, { scale, onPhase });
  }

  async loss(batch: OwnBatch | MicroBatch): Promise<Tensor> {
    const { path, rows, validRows, loss } = this.#own;
    const [count, given] =
      'numbers' in batch
        ? [batch.numbers.length, await this.#batchOf(batch.isValid ? validRows! : rows!, batch)]
        : [batch.rows, this.#tokens(batch)];
    const sum: unknown = await inTheirCode({ path, name: 'loss', hasStores: true }, () =>
      loss(this.#options.module, given),
    );
    if (!isTensor(sum) || sum.size !== 1 || !isFloat(sum.dtype)) {
      const got = isTensor(sum) ? `${sum.dtype} [${sum.shape.join(', ')}]` : shown(sum);
      throw mistakeIn(
        path,
        `loss: expected the sum of the batch's losses as a tensor of one float, got ${got}. End it with sum(losses).`,
      );
    }
    const found = cast(sum, 'f32');
    // A rank without a row computes one that counts for nothing, as others wait for it.
    return count === 0 ? affine(found, 0, 0) : found;
  }

  /** The losses of a batch's two halves together, which are the batch's own where it is a sum. */
  async halvesLoss(batch: OwnBatch | MicroBatch): Promise<Tensor> {
    const [first, second] = halvesOf(batch, this.#options.config.seq);
    return add(await this.loss(first), await this.loss(second));
  }

  #batchOf({ batch }: OwnRows<unknown>, { numbers }: OwnBatch): Promise<unknown> {
    const { path } = this.#own;
    return inTheirCode({ path, name: 'batch' }, () => batch(numbers.length === 0 ? [0] : numbers));
  }

  /** The rows of the data on the device; where there are none, one without targets. */
  #tokens({ rows, tokens, targets, segments, positions }: MicroBatch): TokenBatch {
    const { device, config } = this.#options;
    const { seq } = config;
    const count = Math.max(rows, 1);
    const onDevice = (values: Uint32Array, filler = 0) =>
      device.tensor(rows === 0 ? new Uint32Array(seq).fill(filler) : values, [count, seq], {
        tag: 'staging',
      });
    return {
      tokens: onDevice(tokens),
      targets: onDevice(targets, NO_TARGET),
      segments: segments && onDevice(segments),
      positions: positions && onDevice(positions),
    };
  }
}

/** The rows of a batch in two; the second half of one row is empty. */
function halvesOf(
  batch: OwnBatch | MicroBatch,
  seq: number,
): [OwnBatch | MicroBatch, OwnBatch | MicroBatch] {
  if ('numbers' in batch) {
    const { numbers, firstRow } = batch;
    const half = Math.ceil(numbers.length / 2);
    return [
      { ...batch, numbers: numbers.slice(0, half) },
      { ...batch, numbers: numbers.slice(half), firstRow: firstRow + half },
    ];
  }
  const half = Math.ceil(batch.rows / 2);
  return [cutTokens(batch, 0, half, seq), cutTokens(batch, half, batch.rows, seq)];
}
