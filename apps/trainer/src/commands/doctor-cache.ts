// The part of the command `doctor` that lists the cache of tokens, and clears it.

import { type CachedTokens, cacheLimit, listTokens, TokenCache } from '../data/token-cache.js';
import { formatBytes, formatCount } from '../format.js';

/** What is in a cache, as JSON. */
export interface CacheListing {
  readonly directory: string;
  /** The bytes of all tokens, and the most that they may take. */
  readonly bytes: number;
  readonly limitBytes: number;
  /** The token files, the one that was used last first. */
  readonly held: readonly CachedTokens[];
}

/** @throws {UsageError} where SHARDWEAVE_CACHE_MAXSIZE is no size */
export async function listCache(directory: string, env: NodeJS.ProcessEnv): Promise<CacheListing> {
  const held = (await listTokens(directory)).toSorted((a, b) => b.usedMs - a.usedMs);
  return { directory, bytes: sum(held), limitBytes: cacheLimit(env), held };
}

/** Describes a listing for people, with a line for each token file. */
export function listingText({ directory, bytes, limitBytes, held }: CacheListing): string {
  return [
    `Tokens in ${directory}: ${formatBytes(bytes)}, at most ${formatBytes(limitBytes)} (SHARDWEAVE_CACHE_MAXSIZE)`,
    ...held.map((file) => {
      const { origin, tokens, usedMs, isInUse } = file;
      const what =
        origin === undefined
          ? 'of another version of shardweave'
          : `${origin.name}: ${formatCount(tokens)} tokens (${origin.tokenizer}) of ${formatBytes(origin.bytes)}`;
      const used = new Date(usedMs).toISOString().slice(0, 10);
      const size = formatBytes(file.bytes).padStart(9);
      return `  ${size}  ${isInUse ? 'in use now' : used}  ${what}`;
    }),
  ]
    .join('\n')
    .concat('\n');
}

/**
 * Removes all tokens that nobody uses, and says what became of them.
 * @throws {UsageError} where the cache can't be written
 */
export async function clearCache(directory: string): Promise<string> {
  await using cache = await TokenCache.open(directory);
  const removed = await cache.clear();
  const rest = await listTokens(directory);
  const left =
    rest.length === 0 ? '' : ` ${rest.length} in use stay, with ${formatBytes(sum(rest))}.`;
  return `Removed ${removed.length} token files with ${formatBytes(sum(removed))} from ${directory}.${left}\n`;
}

function sum(all: readonly CachedTokens[]): number {
  return all.reduce((bytes, file) => bytes + file.bytes, 0);
}
