// Writes adapters as a GGUF file of their own, which llama.cpp loads beside the base model that a
// person already has, whatever types that one's matrices are in.

import type { HostTensor, LazyTensor, ModelConfig } from '@shardweave/nn';
import { peftLayers, readPeftState } from '@shardweave/nn';
import { GgufModelError, GgufUsageError } from './errors.js';
import { fileTensor } from './file-tensor.js';
import { fittingType, type GgufType } from './file-types.js';
import { type GgufFile, type GgufTensor, ggufFile } from './gguf-file.js';
import { adapterMetadata } from './model-metadata.js';
import { type TensorPlan, tensorPlans } from './model-tensors.js';
import type { RowPlan } from './tensor-rows.js';

const CALL = 'adapterGguf';
/** Adapters are small, and fewer bits would lose more than they save. */
const ADAPTER_TYPES = ['f32', 'f16', 'bf16', 'q8_0'] as const;
type AdapterType = (typeof ADAPTER_TYPES)[number];

/** Adapters as PEFT's files have them. */
export interface AdapterGguf {
  /** The configuration of the base model (`parseModelConfig` of its config.json). */
  readonly base: ModelConfig;
  /** lora_alpha of adapter_config.json: the adapters' product is multiplied by alpha / rank. */
  readonly alpha: number;
  /**
   * The tensors of adapter_model.safetensors, with PEFT's prefix or without: `X.lora_A.weight`
   * [rank, in] and `X.lora_B.weight` [out, rank] of each adapted layer X, in f32, f16 or bf16.
   */
  readonly state: ReadonlyMap<string, HostTensor | LazyTensor>;
}

/** The type of the factors of an adapter file, and the name of the adapters. */
export interface AdapterGgufOptions {
  /**
   * The type of the factors: f32, f16, bf16 or q8_0. A factor whose rows are not whole blocks is
   * f16: that of lora_B, for q8_0, unless the rank is a multiple of 32.
   */
  readonly type: GgufType;
  /** The name of the adapters (`general.name`). */
  readonly name: string;
}

/**
 * The GGUF file of adapters (`general.type` is `adapter`); each factor is read when its turn comes.
 * @throws {GgufModelError} for adapters of a layer that llama.cpp has no matrix of its own for,
 * such as a head that is tied to the token table, for factors that don't fit the base, and for a
 * base that llama.cpp doesn't compute
 * @throws {FormatError} for a tensor that is no factor, and for one without its partner
 * @throws {GgufUsageError} for an unknown type, for an alpha that is no number above 0, and for no
 * adapters at all
 * @example
 * ```ts
 * import { adapterGguf } from '@shardweave/gguf';
 * import { type HostTensor, parseModelConfig, parsePeftConfig } from '@shardweave/nn';
 *
 * type Tensors = ReadonlyMap<string, HostTensor>;
 *
 * async function* small(texts: ReadonlyMap<string, string>, state: Tensors) {
 *   const { alpha } = parsePeftConfig(texts.get('adapter_config.json')!);
 *   const base = parseModelConfig(texts.get('config.json')!);
 *   yield* adapterGguf({ base, alpha, state }, { type: 'f16', name: 'mine' }).pieces();
 * }
 * ```
 */
export function adapterGguf(adapter: AdapterGguf, options: AdapterGgufOptions): GgufFile {
  const { base, alpha } = adapter;
  const { name } = options;
  const type = ADAPTER_TYPES.find((known) => known === options.type);
  if (type === undefined) {
    throw new GgufUsageError(
      `${CALL}: expected type to be ${ADAPTER_TYPES.join(', ')}, got ${JSON.stringify(options.type)}.`,
    );
  }
  if (!(alpha > 0 && alpha < Number.POSITIVE_INFINITY)) {
    throw new GgufUsageError(`${CALL}: expected alpha to be a number above 0, got ${alpha}.`);
  }
  const state = readPeftState(adapter.state);
  const layers = peftLayers(state);
  if (layers.length === 0) {
    throw new GgufUsageError(
      `${CALL}: expected adapters, lora_A and lora_B of at least one layer, got none.`,
    );
  }
  const plans = new Map(tensorPlans(base).map((plan) => [plan.source, plan]));
  const metadata = adapterMetadata(base, { name, type, alpha });
  const tensors = layers.flatMap((layer) => {
    const plan = plans.get(`${layer}.weight`);
    if (plan === undefined || plan.shape.length !== 2 || plan.isTable) {
      throw new GgufModelError(`${CALL}: ${refusalOf(layer, base)}`);
    }
    return factorTensors(layer, { plan, state, type });
  });
  return ggufFile(metadata, tensors);
}

/** The two factors of a layer. The order of the layer's rows is that of lora_B's. */
function factorTensors(
  layer: string,
  options: {
    readonly plan: TensorPlan;
    readonly state: AdapterGguf['state'];
    readonly type: AdapterType;
  },
): GgufTensor[] {
  const { plan, state, type } = options;
  const [outFeatures, inFeatures] = plan.shape as [number, number];
  const rank = state.get(`${layer}.lora_A.weight`)!.shape[0]!;
  const factor = (which: 'lora_A' | 'lora_B', rows: RowPlan) => {
    const source = `${layer}.${which}.weight`;
    const name = `${plan.name}.${which.toLowerCase()}`;
    const shape = [rows.rows, rows.columns];
    const stored = fittingType(type, rows.columns);
    const factorPlan = { name, source, shape, rows, isAlwaysF32: false, isTable: false, offset: 0 };
    return fileTensor(factorPlan, { tensor: state.get(source)!, type: stored, call: CALL });
  };
  const { rowAt } = plan.rows;
  return [
    factor('lora_A', { rows: rank, columns: inFeatures }),
    factor('lora_B', { rows: outFeatures, columns: rank, ...(rowAt && { rowAt }) }),
  ];
}

function refusalOf(layer: string, base: ModelConfig): string {
  const isTied = base.model_type === 'gpt2' || base.tie_word_embeddings;
  if (layer === 'lm_head' && isTied) {
    return "expected adapters of matrices of their own, got some of 'lm_head', which is the token table in this model (tie_word_embeddings). llama.cpp would change the table with it. Merge them into the model instead.";
  }
  return `expected adapters of a ${base.model_type}'s linear layers, got some of '${layer}'. llama.cpp has no place for them; merge them into the model instead, or train without that target.`;
}
