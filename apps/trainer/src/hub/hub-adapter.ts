// Adapters of the Hub as a directory on this machine.

import { UsageError } from '../errors.js';
import type { HubName } from './hub-name.js';
import { downloadAll, findRepo, listRepo, type RepoCommit, type RepoOptions } from './hub-repo.js';

/**
 * Finds adapters in PEFT's layout, and downloads them; resolves to the directory of their files.
 * @param names.needed those of the files that must be there
 * @param names.other those that are downloaded where they are there
 * @throws what findRepo does
 */
export async function hubAdapter(
  name: HubName,
  { needed, other }: { readonly needed: readonly string[]; readonly other: readonly string[] },
  options: RepoOptions,
): Promise<string> {
  const { repo, revision = 'main' } = name;
  const hasAll = ({ cached, commit }: RepoCommit) => {
    const listing = cached.listing(commit);
    const known = other.filter((file) => listing?.has(file));
    return [...needed, ...known].every((file) => cached.has(commit, file));
  };
  return await findRepo(
    name,
    {
      kind: 'model',
      flag: '--adapter',
      lacks: `there is no directory ${repo} here, and ${repo}@${revision}`,
      find: (at) => (hasAll(at) ? at.cached.snapshot(at.commit) : undefined),
      isWhole: (at) => at.cached.listing(at.commit) !== undefined && hasAll(at),
      download: async (at, client) => {
        const files = await listRepo(at, client);
        const own = files.filter(({ path }) => needed.includes(path) || other.includes(path));
        const missing = needed.find((file) => own.every(({ path }) => path !== file));
        if (missing !== undefined) {
          throw new UsageError(
            `--adapter: expected ${needed.join(' and ')} in ${repo}, got no ${missing}. Name a repository of adapters; a whole model is a --model.`,
          );
        }
        await downloadAll(own, at, { ...options, client });
        return at.cached.snapshot(at.commit);
      },
    },
    options,
  );
}
