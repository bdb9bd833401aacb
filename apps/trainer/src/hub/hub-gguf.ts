// The GGUF files of a repository: which of them a name means, and their headers without the rest.

import { posix } from 'node:path';
import { ggufShardNames, openGgufShards, readGgufModel } from '@shardweave/gguf/read';
import { UsageError } from '../errors.js';
import { explainFiles } from '../files/file-source.js';
import { HeadSource } from './head-source.js';
import type { HubClient, HubFile } from './hub-client.js';
import type { RepoCommit } from './hub-repo.js';
import { HubSource } from './hub-source.js';
import { type ModelName, modelNameText } from './model-name.js';

/** The type that llama.cpp takes where a name has none. */
const USUAL_TYPE = 'Q4_K_M';
/** What makes a repository one of the Hugging Face layout, or of adapters. */
const OTHERS = ['model.safetensors', 'model.safetensors.index.json', 'adapter_config.json'];
/** Encoders of images and sounds, and what quantizing has measured, are no models of texts. */
const PARTS = /(?:^|[-._/])(?:mmproj[-._]|imatrix\.gguf$)/i;
const END = /(?:-\d{5}-of-\d{5})?\.gguf$/;

/** Whether a repository has a model in GGUF files and no other one, by the paths of its files. */
export function hasGgufAlone(paths: readonly string[]): boolean {
  return paths.some((path) => END.test(path)) && !OTHERS.some((path) => paths.includes(path));
}

/**
 * The paths of the files that a name means; of several that are one model the first comes first.
 * @throws {UsageError} where there is no such model, or more than one
 */
export function chooseGguf(
  paths: readonly string[],
  { repo, file }: Pick<ModelName, 'repo' | 'file'>,
): readonly [string, ...string[]] {
  const all = paths.filter((path) => END.test(path));
  const models = all.filter((path) => !PARTS.test(path) && shardsOf(path)[0] === path);
  const wanted = file ?? USUAL_TYPE;
  const isAlone = file === undefined && models.length === 1;
  const found = isAlone ? models : models.filter((path) => isMeant(path, wanted));
  const [first] = found;
  if (first === undefined || found.length > 1) {
    throw new UsageError(`--model: ${repo} ${otherFiles({ all, models, found }, { repo, file })}`);
  }
  const shards = shardsOf(first);
  const missing = shards.find((path) => !paths.includes(path));
  if (missing !== undefined) {
    throw new UsageError(
      `--model: expected ${first} of ${repo} in ${shards.length} files, got no ${missing}. Name another file of it.`,
    );
  }
  return shards;
}

/** Whether a file is meant by its path, or by a type at the end of its name or its folder's. */
function isMeant(path: string, wanted: string): boolean {
  const type = wanted.toLowerCase();
  const names = path.replace(END, '').toLowerCase().split('/');
  const ends = ['-', '.', '_'].map((mark) => mark + type);
  const isOfType = (name: string) => name === type || ends.some((end) => name.endsWith(end));
  return shardsOf(wanted)[0] === path || names.some(isOfType);
}

function shardsOf(path: string): [string, ...string[]] {
  const folder = posix.dirname(path);
  const names = ggufShardNames(posix.basename(path));
  return names.map((name) => posix.join(folder, name)) as [string, ...string[]];
}

/** What is said of a repository in which a name means not one file. */
function otherFiles(
  files: Readonly<Record<'all' | 'models' | 'found', readonly string[]>>,
  { repo, file }: Pick<ModelName, 'repo' | 'file'>,
): string {
  const { all, models, found } = files;
  if (all.length === 0) {
    return `has no GGUF files. Name it without ":${file}".`;
  }
  if (models.length === 0) {
    return `holds ${all.join(', ')}, and no model of texts. Name the repository of that.`;
  }
  const wanted = file ?? `the usual ${USUAL_TYPE}`;
  const got =
    found.length === 0
      ? `has no GGUF file of ${wanted}, but ${models.join(', ')}`
      : `has several GGUF files of ${wanted}: ${found.join(', ')}`;
  return `${got}. Name one as hf:${repo}:${found[0] ?? models[0]}.`;
}

/**
 * The first bytes of files, as far as a model's configuration, tokenizer and the places of its
 * tensors go.
 * @throws {UsageError} for a model that can't be trained here
 */
export async function readHeads(
  files: readonly HubFile[],
  { repo, commit }: RepoCommit,
  client: HubClient,
): Promise<readonly HeadSource[]> {
  const heads = new Map(
    files.map((file) => {
      const source = new HubSource(client, { repo, commit, file });
      return [posix.basename(file.path), new HeadSource(source)];
    }),
  );
  const [first = ''] = heads.keys();
  const name = modelNameText({ repo, revision: commit, file: files[0]?.path });
  const remedy = 'Nothing of its weights was downloaded. Name another model.';
  await explainFiles({ what: `--model: ${name}`, remedy }, async () => {
    await readGgufModel(await openGgufShards({ open: async (own) => heads.get(own) }, first));
  });
  return [...heads.values()];
}
