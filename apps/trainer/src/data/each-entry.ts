// Goes through the entries of data, and tells where it was that something was wrong.

import { UsageError } from '../errors.js';
import type { NeededFields } from './data-file.js';
import type { DataSource, SourceEntry } from './data-source.js';
import type { OnTokenized } from './writing-tools.js';

export interface EntryReading {
  readonly onTokenized: OnTokenized;
  /** The columns of a table that are read. Default: all. */
  readonly needed?: NeededFields | undefined;
}

/** Hands each entry to `write`, whose errors are given its place. */
export async function eachEntry(
  source: DataSource,
  { onTokenized, needed }: EntryReading,
  write: (entry: SourceEntry) => Promise<void>,
): Promise<void> {
  const { flag, total } = source;
  for await (const entry of source.entries(needed)) {
    try {
      await write(entry);
    } catch (cause) {
      if (cause instanceof UsageError) {
        throw new UsageError(`${flag}: ${entry.place}: ${cause.message}`, { cause });
      }
      // JSON.parse takes any depth; what walks through the value does not.
      if (cause instanceof RangeError) {
        throw new UsageError(
          `${flag}: ${entry.place}: expected a document, got values in values too deep to be read. Write its text as "text", or leave it out.`,
          { cause },
        );
      }
      throw cause;
    }
    onTokenized(Math.min(entry.endByte, total), total);
  }
}

/** The mistake of data without any of what it should hold. */
export function hasNone({ flag, name }: DataSource, what: string): UsageError {
  return new UsageError(`${flag}: ${name} has no ${what} in it. Give a file with a line for each.`);
}
