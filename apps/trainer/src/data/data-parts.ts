// What --data and --valid say: files, folders, patterns and data sets of the Hub, one or several,
// all of them or a mixture by weights, such as `chats.jsonl:0.7,notes/*.txt:0.3`.

import { existsSync } from 'node:fs';
import { resolve } from 'node:path';
import { UsageError } from '../errors.js';
import { isDataName } from '../hub/data-name.js';
import { datasetFiles } from '../hub/hub-dataset.js';
import { filesAt, hasFolder } from './find-files.js';

/** A path or a name on the Hub, and how much of a mixture it is; undefined where none is said. */
interface Entry {
  readonly name: string;
  readonly weight: string | undefined;
}

/** Data that is tokenized as one; of a mixture each entry is such a part, and else all of them. */
export interface DataPart {
  /** The name that people know it by; undefined for the novel. */
  readonly name: string | undefined;
  /** Its entries, in the order of their files; none for the novel. */
  readonly entries: readonly string[];
  /** Its part of all rows, from 0 to 1. */
  readonly share: number;
}

const WEIGHT = /^(.+):((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)$/is;

/** The most pieces between commas that are tried as one name, for a name may have commas in it. */
const MOST_PIECES = 16;

/**
 * The parts of data by what was typed; the novel is one.
 * @throws {UsageError} for weights that some entries lack, or that are not above 0
 */
export function dataParts(given: string | undefined, flag = '--data'): readonly DataPart[] {
  if (given === undefined) {
    return [{ name: undefined, entries: [], share: 1 }];
  }
  const entries = entriesOf(given);
  const empty = entries.find(({ name }) => name.trim() === '');
  if (empty !== undefined) {
    throw new UsageError(
      `${flag}: expected a path or a name between commas, got "${given}". Leave out the comma that has nothing beside it.`,
    );
  }
  const bare = entries.find(({ weight }) => weight === undefined);
  const weighted = entries.find(({ weight }) => weight !== undefined);
  if (weighted === undefined) {
    return [{ name: given, entries: entries.map(({ name }) => name), share: 1 }];
  }
  if (bare !== undefined) {
    throw new UsageError(
      `${flag}: ${weighted.name} has the weight ${weighted.weight}, and ${bare.name} has none. Give each entry a weight behind a colon, or none of them.`,
    );
  }
  const weights = entries.map(({ weight }) => Number(weight));
  const sum = weights.reduce((all, weight) => all + weight, 0);
  const wrong = weights.findIndex((weight) => !(weight > 0 && Number.isFinite(sum)));
  if (wrong >= 0) {
    const { name, weight } = entries[wrong]!;
    throw new UsageError(
      `${flag}: expected a weight above 0, got ${weight} of ${name}. Leave the entry out, or give it a weight such as 0.5.`,
    );
  }
  return entries.map(({ name }, i) => ({ name, entries: [name], share: weights[i]! / sum }));
}

/**
 * The files of a part in order, each once. Undefined is the novel.
 * @throws {UsageError} for a folder or a pattern without files, and where the cache has lost them
 */
export function filesOf(part: DataPart, flag: string): readonly (string | undefined)[] {
  if (part.name === undefined) {
    return [undefined];
  }
  const files = part.entries.flatMap((entry) =>
    isDataName(entry) ? datasetFiles(entry) : filesAt(entry, flag),
  );
  return [...new Set(files)];
}

/** Data as a run keeps it, which goes on from any directory: paths are absolute. */
export function absoluteData(given: string | undefined): string | undefined {
  // What is empty is refused when the data is opened, and is no path until then.
  const absolute = (name: string) =>
    name.trim() === '' || isDataName(name) ? name : resolve(name);
  return given && withEntries(given, absolute);
}

/** The names of all entries. */
export function dataNames(given: string | undefined): readonly string[] {
  return given === undefined ? [] : entriesOf(given).map(({ name }) => name);
}

/** The same data under other names, each made of its own by `rename`. */
export function withEntries(given: string, rename: (name: string) => string): string {
  return entriesOf(given)
    .map(({ name, weight }) => rename(name) + (weight === undefined ? '' : `:${weight}`))
    .join(',');
}

/** What was typed, cut at its commas but for those in names. A path that is there is that path. */
function entriesOf(given: string): readonly Entry[] {
  const pieces = existsSync(given) ? [given] : given.split(',');
  const entries: Entry[] = [];
  for (let i = 0; i < pieces.length; ) {
    const end = endOfEntry(pieces, i);
    entries.push(entryOf(pieces.slice(i, end).join(',')));
    i = end;
  }
  const [only] = entries;
  // Alone an entry is all of the data; a number behind a name is a config or a split then.
  return entries.length === 1
    ? [{ name: isDataName(given) ? given : only!.name, weight: undefined }]
    : entries;
}

/** The piece behind the entry that begins with piece `first`. */
function endOfEntry(pieces: readonly string[], first: number): number {
  if (isDataName(pieces[first]) || pieces.length === 1) {
    return first + 1;
  }
  const last = Math.min(pieces.length, first + MOST_PIECES);
  for (const isThere of [existsSync, hasFolder]) {
    for (let end = first + 1; end <= last; end++) {
      if (isThere(entryOf(pieces.slice(first, end).join(',')).name)) {
        return end;
      }
    }
  }
  return first + 1;
}

/** A number behind the last colon is the weight, but for a path that is there with it. */
function entryOf(text: string): Entry {
  const [, name, weight] = (!existsSync(text) && WEIGHT.exec(text)) || [];
  return name === undefined ? { name: text, weight: undefined } : { name, weight };
}
