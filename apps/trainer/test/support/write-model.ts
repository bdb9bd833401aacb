// This writes a model's files beside others of a directory, such as those of a tokenizer.

import { join } from 'node:path';
import { type ModelConfig, type ModelFileOptions, modelFiles } from '@shardweave/nn';
import { writePieces } from '../../src/files/write-file.js';
import type { ModelState } from '../../src/model/model-directory.js';

export async function writeModel(
  directory: string,
  model: { readonly config: ModelConfig; readonly state: ModelState },
  options?: ModelFileOptions,
): Promise<void> {
  for (const { name, pieces } of modelFiles(model.config, model.state, options)) {
    await writePieces(join(directory, name), pieces());
  }
}
