// The slices that were chosen for inputs of certain shapes under a budget.

import type { Shape } from '@shardweave/tensor-core';
import type { OffloadSlice } from './offload-slice.js';

export interface SlicePlan {
  /** The shapes of the inputs that it was made for; it fits smaller ones too. */
  readonly shapes: readonly Shape[];
  readonly isTraining: boolean;
  /** The bytes that the device's pool needs beside what was there when the model was called. */
  readonly neededBytes: number;
  readonly slices: readonly OffloadSlice[];
}

export interface PlannedCall {
  readonly shapes: readonly Shape[];
  readonly isTraining: boolean;
  /** The bytes that the pool has left for it. */
  readonly roomBytes: number;
}

/**
 * Sets of lengths and batch sizes are fewer. Where there are more, the oldest plan goes, and is
 * made anew when its inputs come back.
 */
const MAX_PLANS = 32;

export class SlicePlans {
  #plans: readonly SlicePlan[] = [];

  /** The newest plan that covers a call, so that small batches in between change nothing. */
  find(call: PlannedCall): SlicePlan | undefined {
    return this.#plans.find(
      (plan) =>
        plan.neededBytes <= call.roomBytes &&
        (plan.isTraining || !call.isTraining) &&
        isWithin(call.shapes, plan.shapes),
    );
  }

  add(plan: SlicePlan): void {
    this.#plans = [plan, ...this.#plans].slice(0, MAX_PLANS);
  }
}

function isWithin(shapes: readonly Shape[], limits: readonly Shape[]): boolean {
  return (
    shapes.length === limits.length &&
    shapes.every((shape, i) => {
      const limit = limits[i]!;
      return shape.length === limit.length && shape.every((dim, axis) => dim <= limit[axis]!);
    })
  );
}
