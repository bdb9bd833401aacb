// Adapters of the Hub as a directory on this machine.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { UsageError } from '../errors.js';
import type { HubName } from './hub-name.js';
import { downloadAll, findRepo, type RepoOptions } from './hub-repo.js';

/**
 * Finds adapters in PEFT's layout, and downloads them; resolves to the directory of their files.
 * @param names those of the files, all of which must be there
 * @throws what findRepo does
 */
export async function hubAdapter(
  name: HubName,
  names: readonly string[],
  options: RepoOptions,
): Promise<string> {
  const { repo, revision = 'main' } = name;
  const isWhole = (path: string) => names.every((file) => existsSync(join(path, file)));
  return await findRepo(
    name,
    {
      kind: 'model',
      flag: '--adapter',
      lacks: `there is no directory ${repo} here, and ${repo}@${revision}`,
      find: ({ cached, commit }) => {
        const path = cached.snapshot(commit);
        return isWhole(path) ? path : undefined;
      },
      isWhole,
      download: async (at, client) => {
        const files = await client.filesOf(repo, at.commit);
        const own = files.filter(({ path }) => names.includes(path));
        const missing = names.find((file) => own.every(({ path }) => path !== file));
        if (missing !== undefined) {
          throw new UsageError(
            `--adapter: expected ${names.join(' and ')} in ${repo}, got no ${missing}. Name a repository of adapters; a whole model is a --model.`,
          );
        }
        await downloadAll(own, at, { ...options, client });
        return at.cached.snapshot(at.commit);
      },
    },
    options,
  );
}
