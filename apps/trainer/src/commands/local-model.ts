// Makes of --model org/name, and of --adapter, a directory or a file on this machine, before a
// command begins.

import { existsSync } from 'node:fs';
import { UsageError } from '../errors.js';
import { SENTENCE_FILES } from '../files/sentence-files.js';
import { HubUnreachableError } from '../hub/hub-errors.js';
import type { HubOptions } from '../hub/hub-model.js';
import { type HubName, isCommit } from '../hub/hub-name.js';
import { isModelName, type ModelName, modelNameText, parseModelName } from '../hub/model-name.js';
import { ADAPTER_FILES, CLASSES_FILE, hubBaseOf } from '../model/adapter-directory.js';
import { isPresetName } from '../model/presets.js';
import { meantPath } from '../nearest.js';
import { keptValue, type ResumeFlags } from './kept-value.js';
import { type DownloadStreams, showDownloads } from './show-downloads.js';

/** What a command needs of a model of the Hub. */
export type ModelNeed = 'weights' | 'config';

/** The flags that have a say; a command may lack all of them. */
interface ModelFlags extends ResumeFlags {
  readonly model?: string | undefined;
  readonly adapter?: string | undefined;
  readonly quiet?: boolean | undefined;
}

const KEYS = ['model', 'adapter'] as const;
type Key = (typeof KEYS)[number];

/**
 * The flags with places on this machine for the names of a model and of adapters. A path that
 * exists is taken as it is, and so is a preset. A run that goes on keeps the commits that it
 * began with.
 * @throws what hubModel and hubAdapter do
 */
export async function withLocalModel<F extends object>(
  given: F,
  need: ModelNeed,
  streams: DownloadStreams,
): Promise<F> {
  const flags = given as ModelFlags;
  const [model, adapter] = KEYS.map((key) => nameOf(key, flags)) as [ModelName?, ModelName?];
  if (model === undefined && adapter === undefined) {
    return given;
  }
  const found: Partial<Record<Key, string>> = {};
  await showDownloads(streams, flags.quiet, async ({ warn, ...downloads }) => {
    const options: HubOptions = {
      ...downloads,
      needsWeights: need === 'weights',
      checkHeaders: async (directory, files) => {
        const { checkHeaders } = await import('../plan/check-headers.js');
        await checkHeaders(directory, files);
      },
    };
    const take = async (key: Key, name: ModelName) => {
      found[key] = await find(key, name, options).catch((error: unknown) => {
        throw explain(error, key, flags[key]!);
      });
    };
    await (adapter && take('adapter', adapter));
    if (model !== undefined) {
      const beside = found.adapter ?? flags.adapter;
      const base = beside === undefined ? undefined : hubBaseOf(beside);
      const name = besideAdapters(model, base);
      if (base !== undefined && !isBase(name, base)) {
        warn(
          `--adapter: these adapters were trained beside ${modelNameText(base)}, and --model is ${modelNameText(name)}. Beside other weights they say nothing of use.`,
        );
      }
      await take('model', name);
    }
  });
  return { ...given, ...found };
}

/** A model's name without a revision means the commit beside which its adapters were trained. */
function besideAdapters(model: ModelName, base: HubName | undefined): ModelName {
  const isOpen = model.revision === undefined && base?.repo === model.repo;
  return isOpen ? { ...model, revision: base.revision } : model;
}

/** Whether a model is the one that adapters name, as far as the names tell. */
function isBase(model: HubName, base: HubName): boolean {
  const isOther =
    [model.revision, base.revision].every(isCommit) && model.revision !== base.revision;
  return model.repo === base.repo && !isOther;
}

/**
 * The name on the Hub that a flag has, at the commit that a resumed run has.
 * @throws {UsageError} for what begins with hf: and is no name
 */
function nameOf(key: Key, flags: ModelFlags): ModelName | undefined {
  const { [key]: typed = '' } = flags;
  if (isPresetName(typed) || existsSync(typed)) {
    return undefined;
  }
  const name = parseModelName(typed);
  const isName = name !== undefined && (key === 'model' || name.file === undefined);
  if (!isName) {
    if (isModelName(typed)) {
      const file = key === 'model' ? '[:file]' : '';
      throw new UsageError(
        `--${key}: expected hf:org/name[@revision]${file}, got "${typed}". Copy the name from its page on the Hub.`,
      );
    }
    return undefined;
  }
  const kept = name.revision ? undefined : parseModelName(String(keptValue(key, flags)));
  const revision = kept?.repo === name.repo ? kept.revision : name.revision;
  return { ...name, revision };
}

/** The library of the Hub is large, and most commands need none of it. */
async function find(key: Key, name: ModelName, options: HubOptions): Promise<string> {
  if (key === 'adapter') {
    const { hubAdapter } = await import('../hub/hub-adapter.js');
    // What our own runs leave beside adapters: labels, or how an embedder pools.
    const other = [CLASSES_FILE, ...SENTENCE_FILES, '1_Pooling/config.json'];
    const names = { needed: Object.values(ADAPTER_FILES), other };
    return await hubAdapter(name, names, options);
  }
  const { hubModel } = await import('../hub/hub-model.js');
  return await hubModel(name, options);
}

function explain(error: unknown, key: Key, typed: string): unknown {
  const meant = meantPath(typed);
  if (error instanceof HubUnreachableError) {
    return new HubUnreachableError(
      `--${key}: there is no directory ${typed} here, and the Hub doesn't give what has that name: ${error.message}${meant}`,
      { cause: error },
    );
  }
  return error instanceof UsageError && meant !== ''
    ? new UsageError(`${error.message}${meant}`, { cause: error })
    : error;
}
