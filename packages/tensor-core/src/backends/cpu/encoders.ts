// The functions that encode kernel calls as commands, by the calls' names.

import type { KernelCalls, KernelName } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';
import * as attention from './encode-attention.js';
import * as cast from './encode-cast.js';
import * as compare from './encode-compare.js';
import * as copy from './encode-copy.js';
import * as crossEntropy from './encode-cross-entropy.js';
import * as cumSum from './encode-cum-sum.js';
import * as custom from './encode-custom.js';
import * as dropout from './encode-dropout.js';
import * as elementwise from './encode-elementwise.js';
import * as embedding from './encode-embedding.js';
import * as gated from './encode-gated.js';
import * as gather from './encode-gather.js';
import * as layerNorm from './encode-layer-norm.js';
import * as matmul from './encode-matmul.js';
import * as norm from './encode-norm.js';
import * as optimizer from './encode-optimizer.js';
import * as random from './encode-random.js';
import * as reduce from './encode-reduce.js';
import * as rmsNorm from './encode-rms-norm.js';
import * as rotary from './encode-rotary.js';
import * as softmax from './encode-softmax.js';
import * as topK from './encode-top-k.js';

export type Encoders = {
  readonly [K in KernelName]: (call: KernelCalls[K], writer: CommandWriter) => void;
};

export const ENCODERS: Encoders = {
  ...attention,
  ...cast,
  ...compare,
  ...copy,
  ...crossEntropy,
  ...cumSum,
  ...custom,
  ...dropout,
  ...elementwise,
  ...embedding,
  ...gated,
  ...gather,
  ...layerNorm,
  ...matmul,
  ...norm,
  ...optimizer,
  ...random,
  ...reduce,
  ...rmsNorm,
  ...rotary,
  ...softmax,
  ...topK,
};
