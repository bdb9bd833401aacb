// A model of the Hub as a directory on this machine, or as a GGUF file.

import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { MODEL_TEXTS } from '@shardweave/gguf';
import type { ModelFiles } from '@shardweave/nn';
import { UsageError } from '../errors.js';
import { poolingFile, SENTENCE_FILES } from '../files/sentence-files.js';
import { isLacking } from './hub-cache.js';
import type { HubClient, HubFile } from './hub-client.js';
import { HubContentError } from './hub-errors.js';
import { chooseGguf, hasGgufAlone, readHeads } from './hub-gguf.js';
import {
  downloadAll,
  findRepo,
  listRepo,
  type RepoCommit,
  type RepoOptions,
  type RepoUse,
} from './hub-repo.js';
import { HubSource } from './hub-source.js';
import type { ModelName } from './model-name.js';

export interface HubOptions extends RepoOptions {
  /** Whether the weights are needed, or the configuration and the tokenizer alone. Default true. */
  readonly needsWeights?: boolean;
  /** Called with the weights on the Hub where they are not needed, so that they can be checked. */
  readonly checkHeaders?: ((directory: string, files: ModelFiles) => Promise<void>) | undefined;
}

const CONFIG = 'config.json';
/** All texts that a command may read, of which most models are without some. */
const TEXTS = [...MODEL_TEXTS, 'special_tokens_map.json', ...SENTENCE_FILES];
const WEIGHTS = 'model.safetensors';
const INDEX = 'model.safetensors.index.json';

/**
 * Finds a model, and downloads what the command needs of it; resolves to the directory of its
 * files, or to its first GGUF file. Where the weights are not needed, that one has its header
 * alone.
 * @throws what findRepo does
 */
export async function hubModel(name: ModelName, options: HubOptions = {}): Promise<string> {
  const { repo, revision = 'main' } = name;
  const { needsWeights = true } = options;
  const use: RepoUse<string> = {
    kind: 'model',
    flag: '--model',
    lacks: `there is no directory ${repo} here, and ${repo}@${revision}`,
    find: (at) => {
      if (meansGguf(name, pathsIn(at))) {
        return ggufIn(at, name, options);
      }
      // Other programs don't note which of the other texts a model is without.
      const path = at.cached.snapshot(at.commit);
      const isKnown = (file: string) => at.cached.has(at.commit, file) || isLacking(path, file);
      const hasTexts = at.cached.has(at.commit, CONFIG) && poolingIn(path).every(isKnown);
      const isThere = hasTexts && (!needsWeights || hasAllWeights(at));
      return isThere ? path : undefined;
    },
    isWhole: (at) =>
      meansGguf(name, pathsIn(at))
        ? at.cached.listing(at.commit) !== undefined && ggufIn(at, name, options) !== undefined
        : isWhole(at, options),
    download: (at, client) => download(at, name, { ...options, client }),
  };
  return await findRepo(name, use, options);
}

function meansGguf({ file }: ModelName, paths: readonly string[]): boolean {
  return file !== undefined || hasGgufAlone(paths);
}

/** The paths of all files of a commit or, where nobody has listed them, of those that are here. */
function pathsIn({ cached, commit }: RepoCommit): readonly string[] {
  return [...(cached.listing(commit)?.keys() ?? cached.namesHere(commit))];
}

/** The first file of a model in GGUF files that are here; undefined where one is missing. */
function ggufIn(
  at: RepoCommit,
  name: ModelName,
  { needsWeights = true }: HubOptions,
): string | undefined {
  const { cached, commit } = at;
  try {
    const paths = chooseGguf(pathsIn(at), name);
    if (paths.every((path) => cached.has(commit, path))) {
      return join(cached.snapshot(commit), paths[0]);
    }
    const isEnough = !needsWeights && paths.every((path) => cached.hasHead(commit, path));
    return isEnough ? cached.head(commit, paths[0]) : undefined;
  } catch (error) {
    if (error instanceof UsageError) {
      return undefined; // the Hub may have what is asked for
    }
    throw error;
  }
}

/** Whether what was found has all files that the command needs and that its commit has. */
function isWhole(at: RepoCommit, { needsWeights = true }: HubOptions): boolean {
  const { cached, commit } = at;
  const path = cached.snapshot(commit);
  const isKnown = (name: string) => cached.has(commit, name) || isLacking(path, name);
  const hasTexts = cached.listing(commit) !== undefined && TEXTS.every(isKnown);
  return hasTexts && (!needsWeights || hasAllWeights(at));
}

/** The file of an embedder's pooling, of which its modules.json tells. */
function poolingIn(path: string): readonly string[] {
  return [poolingFile(path) ?? []].flat();
}

/** Whether a snapshot has all files of the weights, or its commit has none. */
function hasAllWeights({ cached, commit }: RepoCommit): boolean {
  const path = cached.snapshot(commit);
  const has = (name: string) => cached.has(commit, name);
  return (
    has(WEIGHTS) ||
    (has(INDEX) && shardsIn(path)?.every(has) === true) ||
    [WEIGHTS, INDEX].every((name) => isLacking(path, name))
  );
}

/**
 * The names of the files that the index of a directory lists; undefined where it has none.
 * @throws {HubContentError} where the index can't be read
 */
function shardsIn(path: string): readonly string[] | undefined {
  const index = join(path, INDEX);
  if (!existsSync(index)) {
    return undefined;
  }
  try {
    const { weight_map: map = {} } = JSON.parse(readFileSync(index, 'utf8')) as {
      readonly weight_map?: Readonly<Record<string, string>>;
    };
    return [...new Set(Object.values(map))];
  } catch (cause) {
    throw new HubContentError(
      `${index}: expected JSON with the files of a model's weights (${(cause as Error).message}). Remove that file, and what it links to, and run the command again.`,
      { cause },
    );
  }
}

type HubTools = HubOptions & { readonly client: HubClient };

/** Downloads what is missing of a commit; resolves as hubModel does. */
async function download(at: RepoCommit, name: ModelName, tools: HubTools): Promise<string> {
  const files = new Map((await listRepo(at, tools.client)).map((file) => [file.path, file]));
  if (meansGguf(name, [...files.keys()])) {
    return await downloadGguf(at, chooseGguf([...files.keys()], name), { files, ...tools });
  }
  refuseOthers(at.repo, files);
  await downloadLayout(at, { files, ...tools });
  return at.cached.snapshot(at.commit);
}

type Files = ReadonlyMap<string, HubFile>;

/** Downloads files, whose headers come first, since most of what can't be read is seen there. */
async function downloadGguf(
  at: RepoCommit,
  paths: readonly [string, ...string[]],
  tools: HubTools & { readonly files: Files },
): Promise<string> {
  const { files, client, needsWeights = true } = tools;
  const { commit, cached } = at;
  const wanted = paths.map((path) => files.get(path)!);
  const heads = await readHeads(wanted, at, client);
  if (needsWeights) {
    await downloadAll(wanted, at, tools);
    return join(cached.snapshot(commit), paths[0]);
  }
  for (const [i, path] of paths.entries()) {
    await heads[i]!.keep(cached.head(commit, path));
  }
  return cached.head(commit, paths[0]);
}

/** Downloads what is missing of a model in the Hugging Face layout. */
async function downloadLayout(
  at: RepoCommit,
  tools: HubTools & { readonly files: Files },
): Promise<void> {
  const { files, client, needsWeights = true, checkHeaders } = tools;
  const { repo, commit, cached } = at;
  const take = async (names: readonly string[]) => {
    const wanted = names.flatMap((name) => files.get(name) ?? []);
    await downloadAll(wanted, at, tools);
  };
  const path = cached.snapshot(commit);
  await take(TEXTS);
  const pooling = poolingIn(path);
  await take(pooling);
  cached.setLacking(
    commit,
    [...TEXTS, ...pooling, WEIGHTS, INDEX].filter((name) => !files.has(name)),
  );
  if (needsWeights) {
    await take(files.has(WEIGHTS) ? [WEIGHTS] : [INDEX]);
    await take(files.has(WEIGHTS) ? [] : (shardsIn(path) ?? []));
  } else if (files.has(WEIGHTS) || files.has(INDEX)) {
    const open = async (name: string) => {
      const file = files.get(name);
      return file && new HubSource(client, { repo, commit, file });
    };
    await checkHeaders?.(path, { open });
  }
}

/** Refuses repositories that hold something else than a model that can be read here. */
function refuseOthers(repo: string, files: Files): void {
  const names = [...files.keys()];
  const other = (end: string) => names.find((name) => name.endsWith(end));
  const refuse = (holds: string, remedy: string) => {
    throw new UsageError(`--model: ${repo} holds ${holds}. ${remedy}`);
  };
  if (files.has('adapter_config.json') && !files.has(CONFIG)) {
    refuse('adapters, and not the model that they were trained beside', 'Name that one.');
  }
  if (!files.has(CONFIG)) {
    const remedy =
      'Name a model in the Hugging Face layout, whose weights are safetensors, or one in GGUF files.';
    refuse('no config.json', remedy);
  }
  const old = other('.bin') ?? other('.pt') ?? other('.h5') ?? other('.msgpack');
  if (!files.has(WEIGHTS) && !files.has(INDEX) && old !== undefined) {
    refuse(
      `weights in ${old}, and none as safetensors`,
      'Its page may have a pull request with them: name it as org/name@refs/pr/N.',
    );
  }
}
