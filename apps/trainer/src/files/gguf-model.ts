// A model in a GGUF file, or in several, which stands where a model directory does: its metadata
// has what the directory has as texts.

import { statSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import type { BlockType } from '@shardweave/dtypes/blocks';
import { GgufTokenizerError } from '@shardweave/gguf';
import {
  type Gguf,
  ggufConfigText,
  ggufShardNames,
  ggufTokenizerTexts,
  openGgufShards,
  type ReadModel,
  readGgufModel,
} from '@shardweave/gguf/read';
import { withModelFiles } from './file-source.js';

export const GGUF_END = '.gguf';

/** Whether a path is a GGUF file by its name; one of several stands for all. */
export function isGgufFile(path: string): boolean {
  return path.endsWith(GGUF_END) && statSync(path, { throwIfNoEntry: false })?.isFile() === true;
}

/** The paths of all files of a model, of which the first is given. */
export function ggufPaths(path: string): string[] {
  return ggufShardNames(basename(path)).map((name) => join(dirname(path), name));
}

/**
 * Hands the model of a file to `use`. Each tensor says its type in the file, and is read when `use`
 * reads it.
 * @throws {GgufError} for files that are missing, damaged, or of a model that is not supported
 */
export function withGgufModel<T>(path: string, use: (model: ReadModel) => Promise<T>): Promise<T> {
  return withGguf(path, async (gguf) => use(await readGgufModel(gguf)));
}

/** The types of the matrices that a file has in blocks, by their names on the Hub. */
export function ggufBlockTypes(path: string): Promise<Map<string, BlockType>> {
  return withGgufModel(path, async ({ tensors }) => {
    const found = [...tensors].flatMap(([name, { values }]) =>
      values.blocks === undefined ? [] : [[name, values.blocks.type] as const],
    );
    return new Map(found);
  });
}

/** The text of the config.json of a file's model. */
export function ggufConfig(path: string): Promise<string> {
  return withGguf(path, ggufConfigText);
}

/**
 * The texts of a file's model and its tokenizer, by the names that they have in a directory.
 * @throws {GgufTokenizerError} for a tokenizer that is not supported
 */
export function ggufTexts(path: string): Promise<Map<string, string>> {
  return withGguf(path, async (gguf) => {
    const config = await ggufConfigText(gguf);
    return new Map([['config.json', config], ...ggufTokenizerTexts(gguf)]);
  });
}

/** The texts of a file's tokenizer; none where it is one that is not supported. */
export function ggufTokenizer(path: string): Promise<Map<string, string>> {
  return withGguf(path, async (gguf) => {
    try {
      return ggufTokenizerTexts(gguf);
    } catch (error) {
      if (error instanceof GgufTokenizerError) {
        return new Map();
      }
      throw error;
    }
  });
}

function withGguf<T>(path: string, use: (gguf: Gguf) => Promise<T>): Promise<T> {
  return withModelFiles(dirname(path), async (files) =>
    use(await openGgufShards(files, basename(path))),
  );
}
