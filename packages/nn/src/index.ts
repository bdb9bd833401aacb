// Modules, optimizers, loss scaling, activation checkpointing and the Hugging Face layout.

export { Checkpoint, type CheckpointOptions, checkpoint } from './checkpoint.js';
export * from './errors.js';
export {
  type GenerateOptions,
  generate,
  type LogitsAfter,
  type NextLogitsOptions,
  nextLogits,
} from './generation/generate.js';
export { drawToken, type SamplingOptions } from './generation/sampling.js';
export type { CapturedModule } from './held/captured-module.js';
export {
  type ClipGradNormOptions,
  clipGradNorm,
  type GradientTarget,
  type GradNorm,
  type GradNormOptions,
  gradNorm,
  scaleGradients,
} from './held/grad-norm.js';
export { GradScaler, type GradScalerOptions, type GradScalerState } from './held/grad-scaler.js';
export { type HashModelOptions, hashModel, hashSave } from './held/hash-model.js';
export type { Sha256 } from './held/hash-tree.js';
export type { Models } from './held/model-at-rest.js';
export {
  captureCheckpoint,
  type LoadCheckpointOptions,
  loadCheckpoint,
  type SaveCheckpointOptions,
  saveCheckpoint,
} from './held/save-checkpoint.js';
export {
  type LazyStateDictOptions,
  lazyStateDict,
  loadStateDict,
  type StateDictOptions,
  stateDict,
} from './held/state-dict.js';
export type { GivenEntry, StateDict, StateDictPlaces, StateEntry } from './held/state-entry.js';
export {
  type ElementRange,
  type FileDType,
  type HostTensor,
  isDeviceDType,
  type LazyBlocks,
  type LazyTensor,
} from './host-tensor.js';
export { AddLayerNorm } from './layers/add-layer-norm.js';
export { AddRmsNorm, type AddRmsNormOptions } from './layers/add-rms-norm.js';
export {
  BatchNorm1d,
  type BatchNormOptions,
  isBatchNorm,
  type PartedBatch,
} from './layers/batch-norm1d.js';
export type { BatchMoments, GradientSums } from './layers/batch-normalize.js';
export { Conv1D, type Conv1DOptions } from './layers/conv1d.js';
export { Dropout } from './layers/dropout.js';
export { Embedding, type EmbeddingOptions } from './layers/embedding.js';
export { Gelu } from './layers/gelu.js';
export {
  KeyValueCache,
  type KeyValueCacheOptions,
  LayerCache,
} from './layers/key-value-cache.js';
export { LayerNorm, type LayerNormOptions } from './layers/layer-norm.js';
export { Linear, type LinearOptions } from './layers/linear.js';
export { ModuleList } from './layers/module-list.js';
export {
  MultiheadAttention,
  type MultiheadAttentionOptions,
  type MultiheadAttentionPlaces,
} from './layers/multihead-attention.js';
export { RmsNorm, type RmsNormLayerOptions } from './layers/rms-norm.js';
export { Sequential } from './layers/sequential.js';
export {
  type StatisticsGroup,
  SyncBatchNorm,
  type SyncBatchNormOptions,
} from './layers/sync-batch-norm.js';
export {
  applyLora,
  type LoraConfig,
  type LoraOptions,
  loraLayers,
} from './lora/apply-lora.js';
export {
  type AdaptableLinear,
  LoraFactor,
  LoraLinear,
  type LoraLinearOptions,
  type LoraScale,
} from './lora/lora-linear.js';
export { type MergeOptions, mergeAdapters } from './lora/merge-lora.js';
export {
  type PeftConfig,
  type PeftOptions,
  parsePeftConfig,
  peftConfigText,
  peftLayers,
  peftState,
  readPeftState,
} from './lora/peft-files.js';
export { listTensors, mapTensors } from './map-tensors.js';
export { Decoder } from './models/decoder.js';
export { DecoderAttention } from './models/decoder-attention.js';
export {
  type DecoderConfig,
  type DecoderOptions,
  type NeededField,
  type RopeScaling,
  resolveDecoderConfig,
} from './models/decoder-config.js';
export type { DecoderFamily, LayerType } from './models/decoder-families.js';
export { DecoderBlock, DecoderEmbeddings } from './models/decoder-layers.js';
export { DecoderMlp } from './models/decoder-mlp.js';
export { decoderParameterCount } from './models/decoder-parts.js';
export { Gpt2, Gpt2Block, Gpt2Embeddings, Gpt2Mlp } from './models/gpt2.js';
export { GPT2_DEFAULTS, type Gpt2Config, resolveGpt2Config } from './models/gpt2-config.js';
export { modelConfigText, parseModelConfig } from './models/hf/config-file.js';
export type { WeightsDType } from './models/hf/config-text.js';
export { modelFiles, openModelState } from './models/hf/model-files.js';
export {
  type ByteSource,
  openSafetensors,
  readSafetensors,
  type Safetensors,
  safetensorsByteLength,
  safetensorsPieces,
  type WriteSafetensorsOptions,
  writeSafetensors,
} from './models/hf/safetensors.js';
export {
  isWeightsFile,
  type ModelFile,
  type ModelFileOptions,
  type ModelFiles,
} from './models/hf/weight-files.js';
export {
  LanguageHead,
  type LanguageHeadOptions,
  type OwnWeight,
  type TiedWeight,
} from './models/language-head.js';
export {
  LanguageModel,
  type LanguageModelOptions,
  type LanguageModelParts,
} from './models/language-model.js';
export { longestRow, makeModel, parameterCount } from './models/make-model.js';
export type { ModelConfig } from './models/model-config.js';
export { type DecoderPartOptions, type RotaryKind, RotaryTable } from './models/rotary-table.js';
export {
  type EmbeddingPlaces,
  type HeadOptions,
  type RowPlaces,
  type TokenArgs,
  type TokenOptions,
  tokenArguments,
} from './models/token-options.js';
export {
  type AfterForward,
  type AfterScope,
  type BeforeForward,
  isModule,
  Module,
} from './module.js';
export { Adam, type AdamOptions, AdamW } from './optim/adam.js';
export { clipCoefficient } from './optim/clip-factor.js';
export type { FlatStep, StepGroup } from './optim/flat-step.js';
export type { SavedGroup } from './optim/match-groups.js';
export { Optimizer, type StepOptions } from './optim/optimizer.js';
export type { OptimizerStateDict, ParameterState } from './optim/optimizer-state.js';
export {
  type PackedParameters,
  type PackOptions,
  packParameters,
} from './optim/pack-parameters.js';
export type { OptimizerGroup, ParamGroup } from './optim/param-groups.js';
export { learningRateAt, type ScheduleKind, type ScheduleOptions } from './optim/schedules.js';
export { Sgd, type SgdOptions } from './optim/sgd.js';
export { castInPlace } from './parameters/cast-in-place.js';
export { joinPath } from './parameters/join-path.js';
export {
  type ModelPartOptions,
  ParameterInit,
  type ParameterInitOptions,
} from './parameters/parameter-init.js';
export { type QuantizeBaseOptions, quantizeBase } from './quantize-base.js';
export { resetParameters } from './reset-parameters.js';
