// The sentence at the end of a run that says which weights it leaves.

import { resultOf } from '../files/run-files.js';
import type { FinalWeights } from '../rank/events.js';
import type { RunConfig } from '../run-config.js';

/** Text such as `model/ has the weights of step 8, the best of the run: loss 3.5402 on va.txt.` */
export function finalText(
  { step, loss, isEvaluated, best }: FinalWeights,
  config: Pick<RunConfig, 'lora' | 'valid'>,
): string {
  const isBest = best?.step === step ? ', the best of the run' : '';
  const data = isEvaluated
    ? (config.valid ?? 'the part that is kept apart')
    : 'the rows of the step after it';
  const value = loss === undefined ? '' : `: loss ${loss.toFixed(4)} on ${data}`;
  const better =
    best === undefined || isBest
      ? ''
      : ` Step ${best.step} had ${best.validLoss.toFixed(4)}: --final best leaves that one.`;
  return `${resultOf(config)}/ has the weights of step ${step}${isBest}${value}.${better}`;
}
