// The functions that turn kernel calls into dispatches, by the calls' names.

import type { KernelCalls, KernelName } from '../../../kernel-calls/kernel-calls.js';
import type { KernelContext } from '../queue/context.js';
import { attention, attentionBackward, attentionMaskGradient } from './attention/attention.js';
import { cast, fill } from './elementwise/cast.js';
import { compare, where } from './elementwise/compare.js';
import { copyStrided } from './elementwise/copy.js';
import { custom } from './elementwise/custom.js';
import { dropout } from './elementwise/dropout.js';
import { affine, binary, unary, unaryBackward } from './elementwise/elementwise.js';
import { random } from './elementwise/random.js';
import { matmul } from './matmul/matmul.js';
import { adam, sgd } from './optimizer/optimizer.js';
import { crossEntropy, crossEntropyBackward } from './rows/cross-entropy.js';
import { cumSum } from './rows/cum-sum.js';
import { embedding, embeddingBackward } from './rows/embedding.js';
import { gated, gatedBackward } from './rows/gated.js';
import { gather, gatherBackward } from './rows/gather.js';
import { layerNorm, layerNormBackward } from './rows/layer-norm.js';
import { clipFactor, normNodes, normTree } from './rows/norm.js';
import { extremumBackward, reduce } from './rows/reduce.js';
import { rmsNorm, rmsNormBackward } from './rows/rms-norm.js';
import { rotary } from './rows/rotary.js';
import { softmax, softmaxBackward } from './rows/softmax.js';
import { topK } from './rows/top-k.js';

export const KERNELS: {
  readonly [K in KernelName]: (ctx: KernelContext, call: KernelCalls[K]) => void;
} = {
  fill,
  cast,
  unary,
  unaryBackward,
  gated,
  gatedBackward,
  rotary,
  affine,
  binary,
  compare,
  where,
  gather,
  gatherBackward,
  topK,
  cumSum,
  copyStrided,
  reduce,
  extremumBackward,
  softmax,
  softmaxBackward,
  layerNorm,
  layerNormBackward,
  rmsNorm,
  rmsNormBackward,
  embedding,
  embeddingBackward,
  crossEntropy,
  crossEntropyBackward,
  dropout,
  random,
  attention,
  attentionBackward,
  attentionMaskGradient,
  matmul,
  normNodes,
  normTree,
  clipFactor,
  adam,
  sgd,
  custom,
};
