// Learning from pairs of answers of which one is preferred: how likely a model finds each, and the
// losses of such pairs.

export { withoutAdapters } from './lora/without-adapters.js';
export { type Answer, answerLogProbs } from './preference/answer-log-probs.js';
export {
  type AnswerPairs,
  type DpoLossOptions,
  dpoLoss,
  type OrpoLossOptions,
  orpoLoss,
  type PairNumbers,
  type PreferenceLoss,
} from './preference/preference-losses.js';
