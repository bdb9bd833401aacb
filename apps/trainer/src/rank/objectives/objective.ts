// The seam for what tasks do differently with a batch: what the loss is, and how its gradients come
// about. Everything above it trains and evaluates in one way.

import type { Module } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import type { OnJudged } from '../../figures/figures.js';
import type { StepPhase } from '../step/phase-memory.js';

/** What is trained: called as its task's objective does. */
// biome-ignore lint/suspicious/noExplicitAny: the arguments of any task
export type TaskModule = Module<any, Tensor>;

export interface BackwardOptions {
  /** The factor of the sum of losses before its gradients are taken. */
  readonly scale: number;
  /** Called where forward and backward begin. */
  readonly onPhase: (phase: StepPhase) => void;
}

/**
 * What a task computes of a rank's batch, which may be empty and is of the task's own kind. Both
 * are collective.
 */
// biome-ignore lint/suspicious/noExplicitAny: the batch of any task
export interface Objective<Batch = any> {
  /** What `backward` tells beside the loss, by name; absent for nothing. */
  readonly figures?: readonly string[];
  /**
   * Adds to the gradients. Resolves with the sum of this rank's losses, f32 of one element and
   * without a graph; after it come the sums of its figures over targets.
   */
  backward(batch: Batch, options: BackwardOptions): Promise<Tensor>;
  /**
   * The sum of the losses, f32 of one element, without a graph.
   * @param onJudged called with each example of a classifier
   */
  loss(batch: Batch, onJudged?: OnJudged): Promise<Tensor>;
}
