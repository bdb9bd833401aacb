// Cuts the rows of inputs and joins those of outputs, whatever arrays and objects hold them.

import { listTensors, mapTensors } from '@shardweave/nn';
import { cat, isTensor, slice, type Tensor } from '@shardweave/tensor-core';
import { OffloadConfigError } from '../errors.js';
import { splitRows } from './split-layers.js';

export interface MicroBatch {
  /** This micro-batch's part of the call's arguments, which any layer may be given. */
  readonly args: readonly unknown[];
  /** What the slice before returned; for the first slice, the first argument. */
  readonly previous: unknown;
  /** The index of its first row in the batch. */
  readonly firstRow: number;
}

/**
 * Cuts the first dimension of every tensor in `args` alike; whatever is not a tensor goes to all
 * micro-batches.
 */
export function cutRows(args: readonly unknown[], numMicrobatches: number): MicroBatch[] {
  if (numMicrobatches === 1) {
    return [{ args, previous: args[0], firstRow: 0 }];
  }
  const tensors = listTensors(args);
  const rows = tensors[0]?.shape[0] ?? 1;
  for (const { shape } of tensors) {
    if (shape[0] === rows) {
      continue;
    }
    throw new OffloadConfigError(
      `offload: expected inputs of ${rows} rows to cut into micro-batches, got shape [${shape.join(', ')}]. Give every input the batch as its first dimension, or use one micro-batch.`,
    );
  }
  let firstRow = 0;
  return splitRows(rows, numMicrobatches).map((count) => {
    const start = firstRow;
    firstRow += count;
    const cut = (tensor: Tensor) => slice(tensor, { axis: 0, start, end: start + count });
    const part = mapTensors(args, cut);
    return { args: part, previous: part[0], firstRow: start };
  });
}

/** Joins the rows of the micro-batches' outputs. */
export function joinRows(outputs: readonly unknown[]): unknown {
  if (outputs.length === 1) {
    return outputs[0];
  }
  const lists = outputs.map((output) => listTensors(output));
  let index = 0;
  return mapTensors(outputs[0], (first) => {
    const parts = lists.map((list) => list[index]);
    index += 1;
    if (first.rank === 0 || !parts.every(isTensor)) {
      throw new OffloadConfigError(
        `offload: expected outputs with the batch as their first dimension to join micro-batches, got shape [${first.shape.join(', ')}]. Take losses outside of the model, or use one micro-batch.`,
      );
    }
    return cat(parts as Tensor[], { axis: 0 });
  });
}
