// The data of a run whose steps are computed again: by its path, by the cache where that has
// changed, or by a path that is given. What counts is the hash in the record.

import { basename } from 'node:path';
import { absoluteData } from '../data/data-parts.js';
import { type PrepareOptions, prepareTokens } from '../data/prepare-tokens.js';
import type { TokenCache } from '../data/token-cache.js';
import { UsageError } from '../errors.js';
import type { PreparedRun, TokenFiles, TokenPart } from '../run-config.js';
import { tokensOf } from '../saves/saved-run.js';

export interface FindTokensOptions extends PrepareOptions {
  readonly cache: TokenCache;
  /** Where the data is now; default: where it was. */
  readonly data?: string | undefined;
  /** Called with what a person should know. */
  readonly onNote: (text: string) => void;
}

/**
 * The tokens that a run had.
 * @param config the run as its record has it
 * @throws {UsageError} where they can't be had, naming the data
 */
export async function findTokens(
  config: PreparedRun,
  options: FindTokensOptions,
): Promise<TokenFiles> {
  const { train, valid } = config.tokens;
  const { data, ...others } = options;
  return {
    train: await findParts(config, train, options),
    valid: valid && (await findParts({ ...config, data: config.valid }, valid, others)),
  };
}

async function findParts(
  config: PreparedRun,
  recorded: readonly TokenPart[],
  options: FindTokensOptions,
): Promise<readonly TokenPart[]> {
  const { data, cache, onNote } = options;
  const asked = data === undefined ? config.data : absoluteData(data);
  const name = asked ?? 'the novel';
  const found = await partsAt({ ...config, data: asked, valid: undefined }, options);
  const hash = (parts: readonly TokenPart[]) =>
    tokensOf({ tokens: { train: parts, valid: undefined } });
  if (!('problem' in found) && hash(found) === hash(recorded)) {
    return found;
  }
  const problem =
    'problem' in found
      ? `${name} can't be used (${found.problem})`
      : `${name} is not what the run had: its tokens are ${hash(found)}, and the run's ${hash(recorded)}`;
  if (data !== undefined) {
    throw new UsageError(`--data: ${problem}. Give the data as it was.`);
  }
  const cached: TokenPart[] = [];
  for (const part of recorded) {
    const directory = await cache.use(basename(part.directory));
    if (directory === undefined) {
      throw new UsageError(
        `${problem}. The cache has no tokens of it, either: give the data as it was with --data.`,
      );
    }
    cached.push({ ...part, directory });
  }
  onNote(`${problem}. The cache has the run's tokens, which are taken.`);
  return cached;
}

/** The tokens of what is there now, or why there are none. */
async function partsAt(
  config: PreparedRun,
  options: FindTokensOptions,
): Promise<readonly TokenPart[] | { readonly problem: string }> {
  try {
    return (await prepareTokens(config, options)).train;
  } catch (error) {
    if (error instanceof UsageError) {
      return { problem: error.message.replace(/\.$/, '') };
    }
    throw error;
  }
}
