// Downloads what --data hf:org/name, --valid and --mine-negatives say, before a command begins, and
// names the commit, the config and the split that they are.

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
  const names = KEYS.filter((key) => isDataName(flags[key]));
  if (names.length === 0) {
    return given;
  }
  const found: Partial<Record<keyof typeof DATA_FLAGS, string>> = {};
  await showDownloads(streams, flags.quiet, async (downloads) => {
    for (const key of names) {
      const flag = DATA_FLAGS[key];
      const typed = parseDataName(flags[key]!, flag);
      const name = typed.revision === undefined ? keptCommit(typed, key, flags) : typed;
      const options = { ...downloads, flag, needsFiles };
      found[key] = await hubDataset(name, options).catch((error: unknown) => {
        throw explain(error, `${flag}: ${flags[key]}`);
      });
    }
  });
  return { ...given, ...found };
}

/** The name at the commit that the resumed run has; as it is where no such run goes on. */
function keptCommit(name: DataName, key: (typeof KEYS)[number], flags: ResumeFlags): DataName {
  const kept = keptValue(key, flags);
  const own = typeof kept === 'string' && isDataName(kept) ? parseDataName(kept, key) : undefined;
  return own?.repo === name.repo ? { ...name, revision: own.revision } : name;
}

function explain(error: unknown, name: string): unknown {
  return error instanceof HubUnreachableError
    ? new HubUnreachableError(
        `${name} is not whole in the cache, and the Hub can't be asked for it: ${error.message}`,
        { cause: error },
      )
    : error;
}
