// Tensors with autograd over WebGPU and an embedded WebAssembly CPU device.

export { byteSize, type DType, isFloat } from '@shardweave/dtypes';
export type { Autograd } from './autograd/autograd.js';
export type { BackwardRule, GradientHook, NodeOptions } from './autograd/node.js';
export type { FinalHook, GradSink, Pass } from './autograd/pass.js';
export type * from './backend.js';
export {
  type CpuLimitsOptions,
  cpuBufferBytes,
  cpuInfo,
  MAX_THREADS,
} from './backends/cpu/cpu-limits.js';
export { Device, type DeviceOptions, type TensorOptions } from './device.js';
export {
  createDryBackend,
  type DryBackendOptions,
  type DryModel,
} from './dry-backend.js';
export * from './errors.js';
export type {
  AttentionOperands,
  HeadStrides,
} from './kernel-calls/attention.js';
export type { CompareKind } from './kernel-calls/compare.js';
export type { CrossEntropyCalls } from './kernel-calls/cross-entropy.js';
export type { CustomKernel, PlainArray } from './kernel-calls/custom.js';
export type { BinaryKind, UnaryKind } from './kernel-calls/elementwise.js';
export type { GateKind } from './kernel-calls/gated.js';
export type * from './kernel-calls/kernel-calls.js';
export type {
  ACTIVATION_KINDS,
  Activation,
  Epilogue,
  EpilogueKernels,
} from './kernel-calls/matmul.js';
export { NORM_BLOCK_ELEMENTS, NORM_NODE_ELEMENTS, type Span } from './kernel-calls/norm.js';
export type { AdamGroup, Segment, SgdGroup } from './kernel-calls/optimizer.js';
export type { NormedRows } from './kernel-calls/row-norm.js';
export type { ElementRun } from './memory/changes.js';
export type { HostBlock, HostBlocks, StorageLoan } from './memory/host-blocks.js';
export { Ledger, MEMORY_TAGS, type MemoryBytes, type MemoryTag } from './memory/ledger.js';
export { Pool, sizeClass } from './memory/pool.js';
export { tensorsIn } from './memory/scope.js';
export { Storage, storageBytes } from './memory/storage.js';
export type { StorageReader } from './memory/storage-reader.js';
export { KERNEL_VERSIONS } from './numeric-class.js';
export {
  type AttentionOptions,
  causalSelfAttention,
  scaledDotProductAttention,
} from './ops/attention.js';
export { type AttentionRows, type Heads, headsOf } from './ops/attention-heads.js';
export { cast } from './ops/cast.js';
export { eq, ge, gt, le, lt, ne, where } from './ops/compare.js';
export { type CrossEntropyOptions, crossEntropy } from './ops/cross-entropy.js';
export { cumSum } from './ops/cum-sum.js';
export {
  type CustomGradient,
  type CustomOp,
  type CustomOpSpec,
  defineOp,
  type InputKind,
  type ParamsOf,
} from './ops/custom.js';
export { dropout } from './ops/dropout.js';
export {
  abs,
  activate,
  add,
  affine,
  cos,
  div,
  exp,
  gelu,
  log,
  maximum,
  minimum,
  mul,
  neg,
  pow,
  reciprocal,
  relu,
  rsqrt,
  sigmoid,
  silu,
  sin,
  sqrt,
  square,
  sub,
  tanh,
} from './ops/elementwise.js';
export { embedding } from './ops/embedding.js';
export { type GateOptions, geGlu, swiGlu } from './ops/gated.js';
export { type AxisOptions, gather } from './ops/gather.js';
export { type LinearCrossEntropyOptions, linearCrossEntropy } from './ops/linear-cross-entropy.js';
export {
  type LinearCrossEntropyPart,
  type LinearCrossEntropyPartOptions,
  linearCrossEntropyPart,
} from './ops/linear-cross-entropy-part.js';
export {
  type LinearEnding,
  type LinearOptions,
  linear,
  type MatmulOptions,
  matmul,
} from './ops/matmul.js';
export {
  drawNormal,
  drawUniform,
  type NormalOptions,
  type NormalShape,
  type RandomOptions,
  randomNormal,
  randomUniform,
  type StreamPart,
  type UniformBounds,
  type UniformOptions,
} from './ops/random.js';
export { max, mean, min, type ReduceOptions, sum } from './ops/reduce.js';
export {
  type RotaryEmbeddingOptions,
  type RotaryFrequencyOptions,
  type RotaryScaling,
  rotaryEmbedding,
  rotaryFrequencies,
} from './ops/rotary.js';
export {
  addLayerNorm,
  addRmsNorm,
  type LayerNormOpOptions,
  layerNorm,
  type NormedSum,
  type RmsNormOptions,
  rmsNorm,
} from './ops/row-norm.js';
export { broadcastTo, cat, reshape, slice, split, transpose } from './ops/shape.js';
export { logSoftmax, softmax } from './ops/softmax.js';
export type { TensorData } from './ops/tensor-data.js';
export { argMax, type TopK, topK } from './ops/top-k.js';
export { Random, type RandomKey, type RandomState } from './random.js';
export {
  type BlockForm,
  type Blocks,
  elementCountOf,
  isTensor,
  type Shape,
  type ShardPiece,
  Tensor,
} from './tensor.js';
export { chromeTrace, Trace, type TraceEvent, type TraceTrack } from './trace.js';
export type * from './view.js';
