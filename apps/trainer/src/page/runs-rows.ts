// What the table of runs shows: which settings differ, in which order runs stand, and which of them
// a text finds.

import type { RunRow, Setting } from './run/page-data.js';

/** A column of the table; a setting's is called by the name of its flag. */
export interface RunColumn {
  readonly key: string;
  readonly title: string;
  /** The value by which runs are ordered; undefined where a run has none. */
  readonly read: (row: RunRow) => Setting | undefined;
}

export interface RunOrder {
  readonly key: string;
  readonly isDescending: boolean;
}

/** What every run has, whatever its settings. */
export const RUN_COLUMNS: readonly RunColumn[] = [
  { key: 'name', title: 'Run', read: ({ name }) => name },
  { key: 'state', title: 'State', read: ({ state }) => state },
  { key: 'step', title: 'Step', read: ({ step }) => step },
  { key: 'loss', title: 'Loss', read: ({ loss }) => loss },
  { key: 'validLoss', title: 'Best validation', read: ({ validLoss }) => validLoss },
  { key: 'tokensPerSecond', title: 'Tokens/s', read: (row) => row.tokensPerSecond },
  { key: 'peakBytes', title: 'Peak', read: ({ peakBytes }) => peakBytes },
  { key: 'atMs', title: 'Last heard', read: ({ atMs }) => atMs },
];

/** The columns of the settings that differ between runs; one without a config.yaml has no say. */
export function differing(rows: readonly RunRow[]): RunColumn[] {
  const known = rows.map(({ settings }) => settings).filter((all) => Object.keys(all).length > 0);
  const names = [...new Set(known.flatMap((settings) => Object.keys(settings)))];
  return names
    .filter((name) => new Set(known.map((settings) => settings[name])).size > 1)
    .map((name) => ({
      key: `--${name}`,
      title: name,
      read: ({ settings }) => settings[name],
    }));
}

/**
 * The runs that have each word of `text` in their name, state or a setting. `lr=4e-3` and `loss<2`
 * compare numbers: a setting by its name, or a column by its key.
 */
export function found(rows: readonly RunRow[], text: string): readonly RunRow[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    const { name, state, settings } = row;
    const pairs = Object.entries(settings).map(([key, value]) => `${key}=${value}`);
    const all = [name, state, ...pairs].join('\n').toLowerCase();
    return words.every((word) => compared(row, word) ?? all.includes(word));
  });
}

/** Whether a comparison holds; undefined for a word that is none, or not one of numbers. */
function compared(row: RunRow, word: string): boolean | undefined {
  const [, key, sign = '', text] = /^([^<>=]+)(<=|>=|<|>|=)([^<>=]+)$/.exec(word) ?? [];
  const wanted = Number(text);
  if (key === undefined || Number.isNaN(wanted)) {
    return;
  }
  const column = RUN_COLUMNS.find((column) => column.key.toLowerCase() === key);
  const value = column?.read(row) ?? row.settings[key];
  if (typeof value !== 'number') {
    return sign === '=' ? undefined : false; // no number is below or above what is none
  }
  switch (sign) {
    case '<':
      return value < wanted;
    case '<=':
      return value <= wanted;
    case '>':
      return value > wanted;
    case '>=':
      return value >= wanted;
    default:
      return value === wanted;
  }
}

/** The rows in order; those without a value stand last either way. */
export function ordered<Row>(
  rows: readonly Row[],
  read: (row: Row) => Setting | undefined,
  { isDescending }: Pick<RunOrder, 'isDescending'>,
): Row[] {
  const sign = isDescending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [read(a), read(b)];
    if (x === undefined || y === undefined) {
      return Number(x === undefined) - Number(y === undefined);
    }
    return sign * compare(x, y);
  });
}

/** Numbers by size and texts by the numbers in them, so that run-9 stands before run-10. */
function compare(x: Setting, y: Setting): number {
  return typeof x === 'number' && typeof y === 'number'
    ? x - y
    : String(x).localeCompare(String(y), 'en', { numeric: true });
}
