// Downloads what --data hf:org/name, --valid and --mine-negatives say, before a command begins, and
// names the commit, the config and the split that they are.

import { dataNames, withEntries } from '../data/data-parts.js';
import { type DataName, isDataName, parseDataName } from '../hub/data-name.js';
import { type DatasetOptions, hubDataset } from '../hub/hub-dataset.js';
import { HubUnreachableError } from '../hub/hub-errors.js';
import { keptValue, type ResumeFlags } from './kept-value.js';
import { type DownloadStreams, showDownloads } from './show-downloads.js';

/** The flags that have a say; a command may lack all of them. */
interface DataFlags extends ResumeFlags {
  readonly data?: string | undefined;
  readonly valid?: string | undefined;
  readonly mineNegatives?: string | undefined;
  readonly quiet?: boolean | undefined;
}

const DATA_FLAGS = {
  data: '--data',
  valid: '--valid',
  mineNegatives: '--mine-negatives',
} as const;
const KEYS = Object.keys(DATA_FLAGS) as (keyof typeof DATA_FLAGS)[];

/**
 * The flags with names of data sets that mean the same files at any time; paths stay as they are.
 * A run that goes on keeps the commit that it began with.
 * @throws what hubDataset does
 */
export async function withLocalData<F extends object>(
  given: F,
  { needsFiles }: Pick<DatasetOptions, 'needsFiles'>,
  streams: DownloadStreams,
): Promise<F> {
  const flags = given as DataFlags;
  const named = KEYS.filter((key) => dataNames(flags[key]).some(isDataName));
  if (named.length === 0) {
    return given;
  }
  const found: Partial<Record<keyof typeof DATA_FLAGS, string>> = {};
  await showDownloads(streams, flags.quiet, async (downloads) => {
    for (const key of named) {
      const flag = DATA_FLAGS[key];
      const local = new Map<string, string>();
      for (const own of dataNames(flags[key]).filter(isDataName)) {
        const typed = parseDataName(own, flag);
        const name = typed.revision === undefined ? keptCommit(typed, key, flags) : typed;
        const options = { ...downloads, flag, needsFiles };
        const pinned = await hubDataset(name, options).catch((error: unknown) => {
          throw explain(error, `${flag}: ${own}`);
        });
        local.set(own, pinned);
      }
      found[key] = withEntries(flags[key]!, (name) => local.get(name) ?? name);
    }
  });
  return { ...given, ...found };
}

/** The name at the commit that the resumed run has; as it is where no such run goes on. */
function keptCommit(name: DataName, key: (typeof KEYS)[number], flags: ResumeFlags): DataName {
  const kept = keptValue(key, flags);
  const names = dataNames(typeof kept === 'string' ? kept : undefined).filter(isDataName);
  const own = names.map((text) => parseDataName(text, key)).find(({ repo }) => repo === name.repo);
  return own === undefined ? name : { ...name, revision: own.revision };
}

function explain(error: unknown, name: string): unknown {
  return error instanceof HubUnreachableError
    ? new HubUnreachableError(
        `${name} is not whole in the cache, and the Hub can't be asked for it: ${error.message}`,
        { cause: error },
      )
    : error;
}
