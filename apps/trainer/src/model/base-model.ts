// Identifies the model that adapters were trained beside. A save of adapters holds nothing else of
// it.

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { isWeightsFile } from '@shardweave/nn';
import { ggufPaths, isGgufFile } from '../files/gguf-model.js';
import type { RunConfig } from '../run-config.js';

/** A frozen model as saves of its adapters name it. */
export interface BaseModel {
  /** The path where it was. */
  readonly path: string;
  /** The hash of its weights' bytes (whole GGUF files), or of what random ones are drawn from. */
  readonly sha256: string;
}

/** The base model of a run with adapters; reads all of its weights. */
export async function baseModelOf({ model, modelConfig, seed }: RunConfig): Promise<BaseModel> {
  const hash = createHash('sha256');
  if (model.kind !== 'directory' || !model.hasWeights) {
    hash.update(JSON.stringify([modelConfig, seed]));
    return { path: model.kind === 'preset' ? model.name : model.path, sha256: hash.digest('hex') };
  }
  for (const path of await weightsFiles(model.path)) {
    for await (const bytes of createReadStream(path)) {
      hash.update(bytes as Uint8Array);
    }
  }
  return { path: model.path, sha256: hash.digest('hex') };
}

async function weightsFiles(path: string): Promise<string[]> {
  if (isGgufFile(path)) {
    return ggufPaths(path);
  }
  const names = (await readdir(path)).filter(isWeightsFile).sort();
  return names.map((name) => join(path, name));
}
