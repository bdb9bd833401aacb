// A language model's files in the Hub's layout: its weights, under the model's own names, and its
// config.json.

import type { HostTensor, LazyTensor } from '../../host-tensor.js';
import type { ModelConfig } from '../model-config.js';
import { modelConfigText } from './config-file.js';
import type { WeightsDType } from './config-text.js';
import { ownTensors } from './model-names.js';
import {
  filesOf,
  type ModelFile,
  type ModelFileOptions,
  type ModelFiles,
  openWeights,
} from './weight-files.js';

/**
 * Opens a model's weights, under the model's own names. The headers and the index are read now, and
 * each tensor when it is asked for. f32, f16 and bf16 stay as the files have them; whatever loads
 * the tensors converts them.
 * @throws {FormatError} for a file that is missing, malformed or cut off, for a tensor that its
 * file lacks although the index lists it, and for a tied head that differs from the token table
 */
export async function openModelState(
  files: ModelFiles,
  config: ModelConfig,
): Promise<Map<string, LazyTensor>> {
  return ownTensors(await openWeights(files), config);
}

/**
 * The files of a model in the order in which to write them. config.json is the last, so that a
 * directory never has a config without its weights; such a directory would describe a model with
 * random weights. Lazy tensors are read when it is their turn.
 */
export function modelFiles(
  config: ModelConfig,
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: ModelFileOptions = {},
): readonly ModelFile[] {
  const configText = (dtype: WeightsDType) => modelConfigText(config, { dtype });
  return filesOf('modelFiles', state, { ...options, configText });
}
