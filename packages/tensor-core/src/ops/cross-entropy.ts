// Cross-entropy of logits against class ids, fused with its log-softmax.

import { checkOptions } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { oneOf } from '../options.js';
import type { Tensor } from '../tensor.js';
import { requireFloat, requireInteger, requireSameDevice, shapeText } from './checks.js';
import { mean, sum } from './reduce.js';

/**
 * -log softmax(logits)[target], always f32: logits [..., classes], targets [...] (i32, u32).
 * @param options.reduction 'mean' over all targets (default), 'sum', or 'none' -> [...]
 */
export function crossEntropy(
  logits: Tensor,
  targets: Tensor,
  options: { readonly reduction?: 'mean' | 'sum' | 'none' } = {},
): Tensor {
  checkOptions<{ reduction: string }>('crossEntropy', options, {
    reduction: oneOf('mean', 'sum', 'none'),
  });
  requireFloat('crossEntropy', logits);
  requireInteger('crossEntropy', targets);
  requireSameDevice('crossEntropy', logits, targets);
  const cols = logits.shape.at(-1) ?? 0;
  const rows = targets.size;
  if (cols === 0 || logits.size !== rows * cols) {
    throw new ShapeError(
      `crossEntropy: expected one target per row of logits, got logits ${shapeText(logits.shape)} and targets ${shapeText(targets.shape)}. Targets are ids, not one-hot rows.`,
    );
  }
  return logits.device.scope(() => {
    const losses = lossesOf(logits, targets, { rows, cols });
    if (options.reduction === 'none') {
      return losses;
    }
    return options.reduction === 'sum' ? sum(losses) : mean(losses);
  });
}

/** One loss per row, of the targets' shape. */
function lossesOf(
  logits: Tensor,
  targets: Tensor,
  { rows, cols }: { readonly rows: number; readonly cols: number },
): Tensor {
  const { device } = logits;
  const losses = device.empty(targets.shape);
  const lse = device.empty([rows]);
  if (rows > 0) {
    device.run('crossEntropy', {
      logits: logits.view(),
      targets: targets.view(),
      loss: losses.view(),
      lse: lse.view(),
      rows,
      cols,
    });
  }
  device.record({
    name: 'crossEntropy',
    inputs: [logits],
    outputs: [losses],
    saved: [logits, targets, lse],
    backward: ([dLoss]) => {
      const dLogits = device.empty(logits.shape, { dtype: logits.dtype });
      if (rows > 0) {
        device.run('crossEntropyBackward', {
          logits: logits.view(),
          targets: targets.view(),
          lse: lse.view(),
          dLoss: dLoss!.view(),
          out: dLogits.view(),
          rows,
          cols,
        });
      }
      return [dLogits];
    },
  });
  return losses;
}
