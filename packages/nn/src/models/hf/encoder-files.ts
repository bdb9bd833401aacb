// An encoder's files in the Hub's layout. Others write them with a prefix, with the heads that the
// encoder was trained with, and with older names of the norms' parameters.

import { FormatError } from '../../errors.js';
import type { HostTensor, LazyTensor } from '../../host-tensor.js';
import type { EncoderConfig } from '../encoder-config.js';
import type { WeightsDType } from './config-text.js';
import { encoderConfigText, parseEncoderConfig } from './encoder-config-file.js';
import {
  filesOf,
  type ModelFile,
  type ModelFileOptions,
  type ModelFiles,
  openWeights,
  readConfig,
} from './weight-files.js';

/** An encoder as its files have it. */
export interface OpenEncoder {
  readonly config: EncoderConfig;
  /** Its weights under the model's own names, for loadStateDict. Each is read when asked for. */
  readonly state: ReadonlyMap<string, LazyTensor>;
}

/** What the names of an encoder's tensors begin with beside those of a head. */
export const ENCODER_PREFIX = 'bert.';
/** Heads, and the numbers 0, 1, 2 and so on, which older files have as a tensor. */
const FOREIGN = /^(cls\.|classifier\.|embeddings\.position_ids$)/;
/** The names that files converted from TensorFlow use for weight and bias. */
const OLD_NORM = /\.LayerNorm\.(gamma|beta)$/;
const NORM_NAMES = { gamma: 'weight', beta: 'bias' } as const;

/**
 * Opens an encoder: its config.json, and its weights in one model.safetensors or in several files.
 * It has a pooler where the weights have one. The heads of other models are left out.
 * @throws {FormatError} for a file that is missing, malformed or cut off, for a config.json of
 * another model, and where two names stand for one tensor
 * @throws {NnConfigError} naming a field of the config.json whose value cannot work
 */
export async function openEncoder(files: ModelFiles): Promise<OpenEncoder> {
  const config = parseEncoderConfig(await readConfig(files));
  const state = encoderTensors(await openWeights(files));
  return { config: { ...config, add_pooling_layer: state.has('pooler.dense.weight') }, state };
}

/**
 * An encoder's own tensors, of those of its files, under its own names.
 * @throws {FormatError} where two names stand for one tensor
 */
export function encoderTensors(tensors: ReadonlyMap<string, LazyTensor>): Map<string, LazyTensor> {
  const state = new Map<string, LazyTensor>();
  for (const [given, tensor] of tensors) {
    const bare = given.startsWith(ENCODER_PREFIX) ? given.slice(ENCODER_PREFIX.length) : given;
    const name = bare.replace(
      OLD_NORM,
      (_, old: keyof typeof NORM_NAMES) => `.LayerNorm.${NORM_NAMES[old]}`,
    );
    if (FOREIGN.test(name)) {
      continue;
    }
    if (state.has(name)) {
      throw new FormatError(`bert: expected '${name}' once, got it twice.`);
    }
    state.set(name, tensor);
  }
  return state;
}

/**
 * The files of an encoder in the order in which to write them, config.json last: those that
 * BertModel loads. Lazy tensors are read when it is their turn.
 */
export function encoderFiles(
  config: EncoderConfig,
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: ModelFileOptions = {},
): readonly ModelFile[] {
  const configText = (dtype: WeightsDType) => encoderConfigText(config, { dtype });
  return filesOf('encoderFiles', state, { ...options, configText });
}
