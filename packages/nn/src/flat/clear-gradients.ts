// Clears gradients: those of single parameters, and those of parameters that share a flat.

import type { GradSink, Tensor } from '@shardweave/tensor-core';
import { flatHomeOf } from './stores/flat-home.js';

/** Frees the gradients of parameters. Other parameters that share a flat keep theirs. */
export function clearGradients(parameters: readonly Tensor[]): void {
  const bySink = new Map<GradSink, Tensor[]>();
  for (const parameter of parameters) {
    const { gradSink, piece } = parameter;
    if (gradSink?.clear === undefined) {
      dropGradient(parameter);
      dropGradient(piece?.flat ?? parameter);
      continue;
    }
    if (parameter.grad !== undefined) {
      dropGradient(parameter); // left from before it was packed or sharded
    }
    if (bySink.has(gradSink)) {
      bySink.get(gradSink)!.push(parameter);
    } else {
      bySink.set(gradSink, [parameter]);
    }
  }
  for (const [sink, leaves] of bySink) {
    sink.clear!(leaves);
  }
}

/** Frees the whole gradient of a parameter or a flat, wherever it rests. */
export function dropGradient(leaf: Tensor): void {
  leaf.grad?.dispose();
  leaf.grad = undefined;
  flatHomeOf(leaf)?.clearGradient();
}
