// This file finds the kernel that belongs to a command's code.

import { attention } from './attention';
import { attentionBackward, attentionDelta, attentionQueryGradient } from './attention-backward';
import { attentionMaskGradient } from './attention-mask';
import { decodeBlocks } from './blocks';
import { cast, fill } from './cast';
import { where } from './compare';
import { copyBytes, copyStrided } from './copy';
import { crossEntropy, crossEntropyBackward } from './cross-entropy';
import { cumSum } from './cum-sum';
import { dropout } from './dropout';
import { affine, unary, unaryBackward } from './elementwise';
import { binary } from './elementwise-binary';
import { embedding, embeddingBackward } from './embedding';
import { gated, gatedBackward } from './gated';
import { gather, gatherBackward } from './gather';
import {
  OP_ADAM,
  OP_AFFINE,
  OP_ATTENTION,
  OP_ATTENTION_BACKWARD,
  OP_ATTENTION_DELTA,
  OP_ATTENTION_MASK_GRADIENT,
  OP_ATTENTION_QUERY_GRADIENT,
  OP_BINARY,
  OP_CAST,
  OP_CLIP_FACTOR,
  OP_COPY,
  OP_COPY_STRIDED,
  OP_CROSS_ENTROPY,
  OP_CROSS_ENTROPY_BACKWARD,
  OP_CUM_SUM,
  OP_DECODE_BLOCKS,
  OP_DROPOUT,
  OP_EMBEDDING,
  OP_EMBEDDING_BACKWARD,
  OP_EXTREMUM_BACKWARD,
  OP_FENCE,
  OP_FILL,
  OP_GATED,
  OP_GATED_BACKWARD,
  OP_GATHER,
  OP_GATHER_BACKWARD,
  OP_MATMUL,
  OP_NORM_NODES,
  OP_NORM_TREE,
  OP_RANDOM,
  OP_REDUCE,
  OP_ROTARY,
  OP_ROW_NORM,
  OP_ROW_NORM_BACKWARD,
  OP_ROW_NORM_PARAM_GRAD,
  OP_SGD,
  OP_SOFTMAX,
  OP_SOFTMAX_BACKWARD,
  OP_TOP_K,
  OP_UNARY,
  OP_UNARY_BACKWARD,
  OP_WHERE,
  SLOT_CHUNKS,
  SLOT_END,
  SLOT_OP,
  SLOT_START,
  SLOT_TRACE,
} from './layout';
import { matmul } from './matmul';
import { clipFactor, normNodes, normTree } from './norm';
import { adam, sgd } from './optimizer';
import { random } from './random';
import { extremumBackward, reduce } from './reduce';
import { rotary } from './rotary';
import { rowNorm, rowNormBackward, rowNormParamGrad } from './row-norm';
import { arg } from './slot';
import { softmax, softmaxBackward } from './softmax';
import { topK } from './top-k';

/** Tells the host that everything before fence `id` has run. */
@external('env', 'fence')
export declare function fence(id: u32): void;

/** Returns the time on the host's clock, in ms. */
@external('env', 'now')
declare function now(): f64;

/** Returns the time for a command that is traced, else 0. */
@inline
export function startTime(slot: usize): f64 {
  return load<u32>(slot + (SLOT_TRACE << 2)) != 0 ? now() : 0;
}

/**
 * Stores when a command began. The time is taken before the first chunk is claimed, so that it
 * precedes the work of every thread.
 */
@inline
export function noteStart(slot: usize, ms: f64): void {
  if (ms != 0) store<f64>(slot + (SLOT_START << 2), ms);
}

export function runChunk(slot: usize, chunk: u32): void {
  const chunks = load<u32>(slot + (SLOT_CHUNKS << 2));
  switch (load<i32>(slot + (SLOT_OP << 2))) {
    case OP_FENCE: break;
    case OP_COPY: copyBytes(slot, chunk, chunks); break;
    case OP_FILL: fill(slot, chunk, chunks); break;
    case OP_CAST: cast(slot, chunk, chunks); break;
    case OP_UNARY: unary(slot, chunk, chunks); break;
    case OP_UNARY_BACKWARD: unaryBackward(slot, chunk, chunks); break;
    case OP_GATED: gated(slot, chunk, chunks); break;
    case OP_GATED_BACKWARD: gatedBackward(slot, chunk, chunks); break;
    case OP_AFFINE: affine(slot, chunk, chunks); break;
    case OP_BINARY: binary(slot, chunk, chunks); break;
    case OP_COPY_STRIDED: copyStrided(slot, chunk, chunks); break;
    case OP_REDUCE: reduce(slot, chunk, chunks); break;
    case OP_EXTREMUM_BACKWARD: extremumBackward(slot, chunk, chunks); break;
    case OP_SOFTMAX: softmax(slot, chunk, chunks); break;
    case OP_SOFTMAX_BACKWARD: softmaxBackward(slot, chunk, chunks); break;
    case OP_ROW_NORM: rowNorm(slot, chunk, chunks); break;
    case OP_ROW_NORM_BACKWARD: rowNormBackward(slot, chunk, chunks); break;
    case OP_ROW_NORM_PARAM_GRAD: rowNormParamGrad(slot, chunk, chunks); break;
    case OP_ROTARY: rotary(slot, chunk, chunks); break;
    case OP_WHERE: where(slot, chunk, chunks); break;
    case OP_GATHER: gather(slot, chunk, chunks); break;
    case OP_GATHER_BACKWARD: gatherBackward(slot, chunk, chunks); break;
    case OP_TOP_K: topK(slot, chunk, chunks); break;
    case OP_CUM_SUM: cumSum(slot, chunk, chunks); break;
    case OP_RANDOM: random(slot, chunk, chunks); break;
    case OP_DECODE_BLOCKS: decodeBlocks(slot, chunk, chunks); break;
    case OP_EMBEDDING: embedding(slot, chunk, chunks); break;
    case OP_EMBEDDING_BACKWARD: embeddingBackward(slot, chunk, chunks); break;
    case OP_CROSS_ENTROPY: crossEntropy(slot, chunk, chunks); break;
    case OP_CROSS_ENTROPY_BACKWARD: crossEntropyBackward(slot, chunk, chunks); break;
    case OP_DROPOUT: dropout(slot, chunk, chunks); break;
    case OP_ATTENTION: attention(slot, chunk, chunks); break;
    case OP_ATTENTION_DELTA: attentionDelta(slot, chunk, chunks); break;
    case OP_ATTENTION_BACKWARD: attentionBackward(slot, chunk, chunks); break;
    case OP_ATTENTION_QUERY_GRADIENT: attentionQueryGradient(slot, chunk, chunks); break;
    case OP_ATTENTION_MASK_GRADIENT: attentionMaskGradient(slot, chunk, chunks); break;
    case OP_MATMUL: matmul(slot, chunk, chunks); break;
    case OP_NORM_NODES: normNodes(slot, chunk, chunks); break;
    case OP_NORM_TREE: normTree(slot, chunk, chunks); break;
    case OP_CLIP_FACTOR: clipFactor(slot, chunk, chunks); break;
    case OP_ADAM: adam(slot, chunk, chunks); break;
    case OP_SGD: sgd(slot, chunk, chunks); break;
    default: unreachable();
  }
}

/**
 * Ends a command. The thread that finished its last chunk calls this. Returns the id of a fence,
 * else 0.
 */
export function finishCommand(slot: usize): u32 {
  if (load<u32>(slot + (SLOT_TRACE << 2)) != 0) {
    store<f64>(slot + (SLOT_END << 2), now());
  }
  return load<i32>(slot + (SLOT_OP << 2)) == OP_FENCE ? arg(slot, 0) : 0;
}
