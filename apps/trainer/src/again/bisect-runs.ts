// The first step in which two runs part, and what differed there: their configurations, their
// devices, their data, or one of its rows. Nothing is computed; the records tell it.

import { cutRows, tokensIn } from '../data/cut-rows.js';
import { openData } from '../data/open-data.js';
import { TokenCache } from '../data/token-cache.js';
import { loadTokenizer } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import type { StepLine } from '../output/run-records.js';
import type { PreparedRun } from '../run-config.js';
import { decidingDifferences } from '../saves/saved-run.js';
import { cacheOf } from './compute-again.js';
import { type FindTokensOptions, findTokens } from './find-tokens.js';
import { type RecordedRun, type RecordedStart, readRecordedRun, startOf } from './recorded-run.js';
import { COMPARED } from './verify-run.js';

export type BisectOptions = Omit<FindTokensOptions, 'cache' | 'data'> & {
  readonly env: NodeJS.ProcessEnv;
};

export interface Bisected {
  /** The first step that differs; undefined where none of those that both have does. */
  readonly step: number | undefined;
  /** Sentences for people. */
  readonly lines: readonly string[];
}

/** What may differ between two runs, in the order in which it is told. */
interface Pair<T> {
  readonly one: T;
  readonly other: T;
}

/** @throws {UsageError} where a directory has no record, or the two have no step in common */
export async function bisectRuns(
  directories: Pair<string>,
  options: BisectOptions,
): Promise<Bisected> {
  const one = await readRecordedRun(directories.one);
  const other = await readRecordedRun(directories.other);
  const common = [...one.lines.keys()].filter((step) => other.lines.has(step));
  const [first, last] = [Math.min(...common), Math.max(...common)];
  if (common.length === 0) {
    throw new UsageError(
      `${one.directory} and ${other.directory} have no step in common. Give two runs whose records have some.`,
    );
  }
  const step = common
    .sort((a, b) => a - b)
    .find((at) => fieldIn({ one: one.lines.get(at)!, other: other.lines.get(at)! }) !== undefined);
  const names = `${one.directory} and ${other.directory}`;
  if (step === undefined) {
    return {
      step,
      lines: [
        common.length === 1
          ? `${names} are equal in the one step that both have, step ${first}.`
          : `${names} are equal in all ${common.length} steps that both have, ${first} to ${last}.`,
      ],
    };
  }
  const [was, is] = [one.lines.get(step)!, other.lines.get(step)!];
  const field = fieldIn({ one: was, other: is })!;
  const before = common.filter((at) => at < step).at(-1);
  const until =
    before === undefined ? 'differ from the first step on' : `are equal up to step ${before}`;
  const parted = `${names} ${until}, and part at step ${step}: its ${COMPARED[field]} is ${was[field]} in the first, and ${is[field]} in the second.`;
  const starts = { one: begun(one, step), other: begun(other, step) };
  const found = [
    ...startLines(starts, { step, before: before ?? 0 }),
    ...configLines(starts),
    ...classLines(starts),
    ...(await dataLines(starts, { ...options, step })),
  ];
  const none = [
    'Their configurations, numeric classes and data are equal. verify tells which of the two can be computed again.',
  ];
  return { step, lines: [parted, ...(found.length === 0 ? none : found)] };
}

function begun(run: RecordedRun, step: number): RecordedStart {
  return startOf(run, step) ?? run.starts[0]!;
}

/** The first field of two lines that differs. */
function fieldIn({ one, other }: Pair<StepLine>): keyof typeof COMPARED | undefined {
  return (Object.keys(COMPARED) as (keyof typeof COMPARED)[]).find((name) => {
    const [was, is] = [one[name], other[name]];
    return was !== undefined && is !== undefined && was !== is;
  });
}

/** What the commands of the step began with, where that can be why it differs. */
function startLines(
  { one, other }: Pair<RecordedStart>,
  { step, before }: { readonly step: number; readonly before: number },
): string[] {
  const lines: string[] = [];
  for (const [name, { step: at, from }] of [
    ['first', one],
    ['second', other],
  ] as const) {
    if (from !== undefined && at >= before && at < step) {
      lines.push(`start: the ${name} went on from ${from} before step ${at + 1}.`);
    }
  }
  const [was, is] = [one.config.firstSave, other.config.firstSave];
  if (was !== is) {
    lines.push(
      `start: the first began with ${was ?? 'new weights'}, the second with ${is ?? 'new weights'}.`,
    );
  }
  const isSameStep = one.step === other.step;
  if (isSameStep && one.hash !== undefined && other.hash !== undefined && one.hash !== other.hash) {
    lines.push(
      `start: the weights after step ${one.step} have other hashes, ${one.hash} and ${other.hash}.`,
    );
  }
  if (one.base?.sha256 !== other.base?.sha256) {
    lines.push(
      `start: the base of the adapters is ${one.base?.path} (${one.base?.sha256}), and ${other.base?.path} (${other.base?.sha256}).`,
    );
  }
  return lines;
}

function configLines({ one, other }: Pair<RecordedStart>): string[] {
  const flags = decidingDifferences(one.config, other.config).map(
    ({ flag, was, is }) => `config: ${flag} is ${was} in the first, and ${is} in the second.`,
  );
  const [was, is] = [one, other].map(
    ({ config }) => config.modelConfig as unknown as Readonly<Record<string, unknown>>,
  ) as [Readonly<Record<string, unknown>>, Readonly<Record<string, unknown>>];
  const fields = [...new Set([...Object.keys(was), ...Object.keys(is)])];
  const model = fields
    .map((name) => ({ name, values: [was[name], is[name]].map((value) => JSON.stringify(value)) }))
    .filter(({ values }) => values[0] !== values[1])
    .map(({ name, values }) => `config: the model's ${name} is ${values.join(', and ')}.`);
  return [...flags, ...model];
}

function classLines({ one, other }: Pair<RecordedStart>): string[] {
  const [was, is] = [one, other].map(({ numericClasses }) => numericClasses.join(' and '));
  return was === is
    ? []
    : [
        `class: the first was computed by ${was}, and the second by ${is}: they need not round alike.`,
      ];
}

async function dataLines(
  { one, other }: Pair<RecordedStart>,
  options: BisectOptions & { readonly step: number },
): Promise<string[]> {
  if (one.tokens === other.tokens) {
    return [];
  }
  const [was, is] = [one, other].map(({ config }) => config.data ?? 'the novel');
  const lines = [`data: ${was} and ${is} are not the same (${one.tokens}, ${other.tokens}).`];
  try {
    const [own, theirs] = [await rowsAt(one.config, options), await rowsAt(other.config, options)];
    for (let row = 0; row < Math.max(own.length, theirs.length); row++) {
      if (JSON.stringify(own[row]?.tokens) !== JSON.stringify(theirs[row]?.tokens)) {
        lines.push(
          `row: row ${row} of step ${options.step} is ${textOf(own[row])} in the first, and ${textOf(theirs[row])} in the second.`,
        );
      }
    }
    return lines;
  } catch (error) {
    if (!(error instanceof UsageError)) {
      throw error;
    }
    return [...lines, `row: its rows can't be compared. ${error.message}`];
  }
}

interface Row {
  readonly tokens: readonly (readonly number[])[];
  readonly text: string;
}

/** All rows of a step, in their order. */
async function rowsAt(
  config: PreparedRun,
  { step, env, ...options }: BisectOptions & { readonly step: number },
): Promise<readonly Row[]> {
  const directory = cacheOf(config, env);
  await using cache = await TokenCache.open(directory);
  const one = { ranks: 1, gradAccum: 1, gradientGroups: undefined };
  const found = { ...config, cache: directory, ...one };
  const tokens = await findTokens(found, { ...options, cache });
  await using data = await openData(found, { ...tokens, valid: undefined });
  const { tokenizer: name, model, seq, batch: count } = config;
  const tokenizer = await loadTokenizer(name, model.kind === 'directory' ? model.path : undefined);
  const batch = await data.train.microBatch(step - 1, 0, 0);
  return Array.from({ length: count }, (_, row) => {
    const own = tokensIn(cutRows(batch, { first: row, end: row + 1, seq }));
    return { tokens: own, text: own.map((ids) => tokenizer.decode(ids)).join(' | ') };
  });
}

function textOf(row: Row | undefined): string {
  return row === undefined ? 'not there' : JSON.stringify(row.text);
}
