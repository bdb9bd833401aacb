// The functions that turn kernel calls into dispatches, by the calls' names.

import type { KernelCalls, KernelName } from '../../../kernel-calls/kernel-calls.js';
import type { KernelContext } from '../context.js';
import { attention, attentionBackward, attentionMaskGradient } from './attention.js';
import { cast, fill } from './cast.js';
import { compare, where } from './compare.js';
import { copyStrided } from './copy.js';
import { crossEntropy, crossEntropyBackward } from './cross-entropy.js';
import { cumSum } from './cum-sum.js';
import { custom } from './custom.js';
import { dropout } from './dropout.js';
import { affine, binary, unary, unaryBackward } from './elementwise.js';
import { embedding, embeddingBackward } from './embedding.js';
import { gated, gatedBackward } from './gated.js';
import { gather, gatherBackward } from './gather.js';
import { layerNorm, layerNormBackward } from './layer-norm.js';
import { matmul } from './matmul.js';
import { clipFactor, normNodes, normTree } from './norm.js';
import { adam, sgd } from './optimizer.js';
import { random } from './random.js';
import { extremumBackward, reduce } from './reduce.js';
import { rmsNorm, rmsNormBackward } from './rms-norm.js';
import { rotary } from './rotary.js';
import { softmax, softmaxBackward } from './softmax.js';
import { topK } from './top-k.js';

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
