// Runs what people have written. What it throws is theirs to mend, so it is told with the lines of
// their files; what others throw through it is not.

import { spawnSync } from 'node:child_process';
import { dirname } from 'node:path';
import { pathToFileURL } from 'node:url';
import { CollectiveError, PeerFailedError } from '@shardweave/collectives';
import { OffloadBudgetError } from '@shardweave/offload';
import { DeviceLostError, LimitError, OutOfMemoryError } from '@shardweave/tensor-core';
import { TrainerError, UsageError } from '../errors.js';

/** What a rank, a device or a plan throws through their code. */
const OTHERS = [
  ...[TrainerError, CollectiveError, PeerFailedError, OffloadBudgetError],
  ...[DeviceLostError, LimitError, OutOfMemoryError],
];
/** The most lines of a stack that are shown. */
const MOST_LINES = 8;

/** A part of a file that people have written. */
export interface TheirPart {
  readonly path: string;
  /** The name of the part, such as `create`. */
  readonly name: string;
  /** Whether a store of ours may fail in it. Default false: what the system says is theirs. */
  readonly hasStores?: boolean;
}

/** @throws {UsageError} with the message and the stack of what their code throws */
export async function inTheirCode<T>(part: TheirPart, run: () => T | Promise<T>): Promise<T> {
  try {
    return await run();
  } catch (cause) {
    if (isOfOthers(cause, part)) {
      throw cause;
    }
    const { name, message } = cause instanceof Error ? cause : { name: '', message: String(cause) };
    const said = name === '' || name === 'Error' ? message : `${name}: ${message}`;
    throw mistakeIn(part.path, `${part.name} failed. ${said}${stackIn(part.path, cause)}`, cause);
  }
}

/** A mistake in a file that people have written. */
export function mistakeIn(path: string, says: string, cause?: unknown): UsageError {
  return new UsageError(`--model ${path}: ${says}`, { cause });
}

function isOfOthers(error: unknown, { hasStores = false }: TheirPart): boolean {
  const isSystem = (error as NodeJS.ErrnoException | null)?.syscall !== undefined;
  return (hasStores && isSystem) || OTHERS.some((kind) => error instanceof kind);
}

/** The lines of a stack that lie beside their file, or else the first ones. */
function stackIn(path: string, error: unknown): string {
  const lines = String((error as Error | null)?.stack ?? '').split('\n');
  const places = lines.filter((line) => /^\s+at /.test(line) && !/node:internal/.test(line));
  const folders = [dirname(path), pathToFileURL(dirname(path)).href];
  const own = places.filter(
    (line) => folders.some((folder) => line.includes(folder)) && !line.includes('/node_modules/'),
  );
  const shown = own.length > 0 ? own : places;
  const place = error instanceof SyntaxError && own.length === 0 ? syntaxPlace(path) : [];
  return [...place, ...shown]
    .slice(0, MOST_LINES)
    .map((line) => `\n${line.replace(/\?text=[0-9a-f]+/, '')}`)
    .join('');
}

/** The place of a mistake that keeps a text from being read, which no stack has. */
function syntaxPlace(path: string): string[] {
  const { stderr } = spawnSync(process.execPath, ['--check', path], { encoding: 'utf8' });
  const [place, ...text] = stderr.split('\n');
  return place!.includes(path) ? [`    at ${place}`, ...text.slice(0, 2)] : [];
}
