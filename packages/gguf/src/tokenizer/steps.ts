// The steps of a tokenizer's pipeline, with those inside sequences.

import type { PipelineStep } from '../tokenizer-files.js';

/** A step as a list of one; for a sequence the steps in it, in their order. */
export function stepsOf(step: PipelineStep | null | undefined): readonly PipelineStep[] {
  if (!step) {
    return [];
  }
  if (step.type !== 'Sequence') {
    return [step];
  }
  const parts = step.pretokenizers ?? step.normalizers ?? step.processors;
  return ((parts ?? []) as readonly PipelineStep[]).flatMap(stepsOf);
}
