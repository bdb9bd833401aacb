// The data of a run as the rows that each rank takes: those to train on and, apart from them, those
// to evaluate on.

import { UsageError } from '../errors.js';
import type { RunConfig, TokenFiles, TokenPart } from '../run-config.js';
import { placeIn } from './data-file.js';
import { DataSource, formatOf } from './data-source.js';
import { rolesIn } from './line-shapes.js';
import { mixedRows } from './mixed-rows.js';
import { packedRows } from './packed-rows.js';
import { numMicroSteps, permute, rowsOf } from './row-order.js';
import type { RowArrays, RowOrderName, RowOrigin, RowSource } from './rows.js';
import { streamRows } from './stream-rows.js';
import { TokenFile, type TokenIndex } from './token-file.js';

/** The rows for one micro-step of one rank; there may be none. */
export interface MicroBatch extends RowArrays {
  /** [rows, seq]: the factor of each target's loss. Undefined: 1 for all. */
  readonly weights?: Float32Array;
  readonly rows: number;
  /** The number of the first row among the B rows of the step; dropout's masks depend on it. */
  readonly firstRow: number;
}

export interface DataSize {
  readonly tokens: number;
  /** The number of documents; 0 for a text. */
  readonly documents: number;
  /** What `documents` counts. Default 'documents'. */
  readonly unit?: 'examples' | 'rows' | undefined;
  /** The number of documents that are longer than a row, and of the pieces that they are cut in. */
  readonly cut: number;
  readonly pieces: number;
  /**
   * The number of rows of the first epoch; that of a mixture ends with the first part that does.
   */
  readonly rows: number;
  /** The number of files; undefined for one. */
  readonly files?: number | undefined;
  /** The parts of a mixture, in the order in which they were named. */
  readonly parts?: readonly PartSize[] | undefined;
}

/** A part of a mixture; its rows are those that are its own. */
export interface PartSize extends Omit<DataSize, 'parts'> {
  readonly name: string;
  /** Its part of all rows, from 0 to 1. */
  readonly share: number;
}

/** `Batch` is what a task's objective takes: rows of tokens, or examples. */
export interface Dataset<Batch extends Pick<MicroBatch, 'firstRow'> = MicroBatch> {
  readonly size: DataSize;
  /** The number of steps that take each row once; the last one may be partial. */
  readonly numSteps: number;
  /** The number of micro-steps in every step, on every rank. */
  readonly numMicroSteps: number;
  /**
   * The number of targets that count in step `step` (from 0), over all ranks and micro-steps.
   * Losses are divided by it.
   */
  numTargets(step: number): Promise<number>;
  /** The tokens of step `step`, over all ranks. Absent where all steps have as many. */
  numTokens?(step: number): number;
  /** Where row `row` of step `step` is in the data, both from 0. */
  originOf(step: number, row: number): RowOrigin;
  /** The bytes that the targets of a text spell; see TokenIndex. */
  readonly targetBytes?: TokenIndex['targetBytes'];
  /** The rows of `rank` in micro-step `microStep` of step `step` (from 0). */
  microBatch(step: number, rank: number, microStep: number): Promise<Batch>;
}

/** The data sets of a run; disposing it closes their files. */
export interface RunData<Batch extends Pick<MicroBatch, 'firstRow'> = MicroBatch>
  extends AsyncDisposable {
  readonly train: Dataset<Batch>;
  /** What is evaluated: its steps are the batches that --eval-batches allows. */
  readonly valid: Dataset<Batch> | undefined;
}

export interface DataConfig
  extends Pick<RunConfig, 'data' | 'trainOnPrompt' | 'tokenizer' | 'modelConfig'>,
    Pick<RunConfig, 'batch' | 'seq' | 'seed' | 'ranks' | 'gradAccum'>,
    Partial<Pick<RunConfig, 'gradientGroups' | 'strategy'>> {
  readonly order: RowOrderName;
}

/**
 * The documents that are kept apart do not depend on the run's seed, so that runs of several seeds
 * can be compared.
 */
const VALID_SEED = 0;

/**
 * Opens what `prepareTokens` has made; only tables are in memory.
 * @throws {UsageError} for data that is too short, that has tokens beyond the model's vocabulary,
 * or that is all prompt
 */
export async function openTokens(
  config: DataConfig & Pick<RunConfig, 'valid' | 'validFraction' | 'evalBatches'>,
  files: TokenFiles,
): Promise<RunData> {
  const open: TokenFile[] = [];
  const opened = async (directory: string) => {
    const file = await TokenFile.open(directory);
    open.push(file);
    return file;
  };
  const close = async () => {
    await Promise.all(open.map((file) => file.close()));
  };
  try {
    const sources = (parts: readonly TokenPart[], flag: string): Promise<Source[]> =>
      Promise.all(
        parts.map(async ({ directory, name, share }) => ({
          file: await opened(directory),
          name: name ?? 'the novel',
          path: name,
          share,
          flag,
        })),
      );
    const cut = (await sources(files.train, '--data')).map((own) =>
      split(own, config.validFraction),
    );
    const train = cut.map(([first]) => first);
    const last = cut.flatMap(([, apart]) => apart ?? []);
    const apart = files.valid === undefined ? last : await sources(files.valid, '--valid');
    const valid = apart.length === 0 ? undefined : await dataset(config, apart, 'in turn');
    return {
      train: await dataset(config, train, config.order),
      valid: valid && { ...valid, numSteps: Math.min(valid.numSteps, config.evalBatches) },
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** A token file, or a part of one. */
interface Source {
  readonly file: TokenFile;
  /** The name that people know it by. */
  readonly name: string;
  /** Where the data itself is; undefined for the novel. */
  readonly path: string | undefined;
  readonly flag: string;
  /** Its part of all rows, from 0 to 1. */
  readonly share: number;
  /** Tokens [first, end) of a text. Default: all. */
  readonly range?: readonly [number, number];
  /** The numbers of the documents to take. Default: all of the file's. */
  readonly documents?: Uint32Array;
}

/** Splits a part off for evaluation: the end of a text, or documents from all over the file. */
function split(source: Source, fraction: number | undefined): [Source, Source | undefined] {
  if (fraction === undefined) {
    return [source, undefined];
  }
  const { kind, tokens, documents } = source.file.index;
  const name = `${source.name} (with --valid-fraction ${fraction})`;
  if (kind === 'stream') {
    const cut = tokens - Math.round(tokens * fraction);
    return [
      { ...source, name, range: [0, cut] },
      { ...source, name, range: [cut, tokens] },
    ];
  }
  // Documents of one line are one conversation, which would otherwise be learnt and evaluated.
  const lineOf = Array.from({ length: documents }, (_, i) => source.file.document(i).line);
  const lines = [...new Set(lineOf)];
  const numApart = Math.max(1, Math.round(lines.length * fraction));
  if (numApart >= lines.length) {
    throw new UsageError(
      `--valid-fraction ${fraction}: ${source.name} has ${lines.length} documents, so none would be left to train on. Give more documents, a smaller fraction, or --valid with a file of its own.`,
    );
  }
  const apart = new Set(
    [...permute(lines.length, VALID_SEED, 0).slice(0, numApart)].map((i) => lines[i]),
  );
  const all = new Uint32Array(documents).map((_, i) => i);
  return [
    { ...source, name, documents: all.filter((i) => !apart.has(lineOf[i])) },
    { ...source, name, documents: all.filter((i) => apart.has(lineOf[i])) },
  ];
}

async function dataset(
  config: DataConfig,
  sources: readonly Source[],
  order: RowOrderName,
): Promise<Dataset> {
  const { batch, seq } = config;
  for (const source of sources) {
    checkVocabulary(config, source);
    await checkCounted(config, source);
  }
  const parts = sources.map((source) => ({
    rows: rowsFrom(config, source, order),
    share: source.share,
  }));
  const rows = parts.length === 1 ? parts[0]!.rows : mixedRows(parts, { seq });
  /** An evaluation ends with the last row; training goes on through the epochs. */
  const end = order === 'in turn' ? rows.numRows : Number.POSITIVE_INFINITY;
  const sizes = sources.map((source, i) => ({
    ...sizeOf(config, source),
    rows: parts[i]!.rows.numRows,
    name: source.path ?? source.name,
    share: source.share,
  }));
  return {
    size: allOf(sizes, rows.numRows),
    targetBytes: sources.length === 1 ? sources[0]!.file.index.targetBytes : undefined,
    numSteps: Math.ceil(rows.numRows / batch),
    numMicroSteps: numMicroSteps(config),
    numTargets: async (step) => {
      let sum = 0;
      for (let index = step * batch; index < Math.min((step + 1) * batch, end); index++) {
        sum += await rows.numTargets(index);
      }
      return sum;
    },
    originOf: (step, row) => rows.originOf(step * batch + row),
    microBatch: async (step, rank, microStep) => {
      const own = rowsOf({ ...config, rank, microStep });
      const [first, last] = [own.first, own.end].map((row) =>
        Math.min(row, end - step * batch),
      ) as [number, number];
      const size = (last - first) * seq;
      const arrays: RowArrays = {
        tokens: new Uint32Array(size),
        targets: new Uint32Array(size),
        ...(rows.isPacked && {
          segments: new Uint32Array(size),
          positions: new Uint32Array(size),
        }),
      };
      for (let row = first; row < last; row++) {
        await rows.fill(step * batch + row, arrays, row - first);
      }
      return { ...arrays, rows: last - first, firstRow: first };
    },
  };
}

/** The size of all parts, whose epoch has so many rows. */
function allOf(parts: readonly PartSize[], rows: number): DataSize {
  if (parts.length === 1) {
    const { name: _, share: __, ...size } = parts[0]!;
    return size;
  }
  const sum = (count: (part: PartSize) => number) =>
    parts.reduce((all, part) => all + count(part), 0);
  return {
    tokens: sum(({ tokens }) => tokens),
    documents: sum(({ documents }) => documents),
    cut: sum(({ cut }) => cut),
    pieces: sum(({ pieces }) => pieces),
    files: sum(({ files = 1 }) => files),
    rows,
    parts,
  };
}

function sizeOf({ seq }: DataConfig, source: Source): Omit<DataSize, 'rows'> {
  const { file, range } = source;
  const { files = 1 } = file.index.origin;
  const several = files > 1 ? { files } : {};
  if (file.index.kind === 'stream') {
    const [first, end] = range ?? [0, file.index.tokens];
    return { tokens: end - first, documents: 0, cut: 0, pieces: 0, ...several };
  }
  const all = documentsOf(source);
  let [tokens, cut, pieces] = [0, 0, 0];
  for (const i of all) {
    const { length } = file.document(i);
    tokens += length;
    if (length - 1 > seq) {
      cut++;
      pieces += Math.ceil((length - 1) / seq);
    }
  }
  return { tokens, documents: all.length, cut, pieces, ...several };
}

/** The numbers of the documents of a source, in the order of its file. */
function documentsOf({ file, documents }: Source): Uint32Array {
  return documents ?? new Uint32Array(file.index.documents).map((_, i) => i);
}

function rowsFrom(config: DataConfig, source: Source, order: RowOrderName): RowSource {
  const { seq, batch, seed, trainOnPrompt } = config;
  const { file, name, flag } = source;
  if (file.index.kind === 'documents') {
    return packedRows(file, { documents: documentsOf(source), seq, seed, order, trainOnPrompt });
  }
  const [first, end] = source.range ?? [0, file.index.tokens];
  const length = end - first;
  if (length < 2) {
    throw new UsageError(
      `${flag}: ${name} has ${length === 1 ? 'one token' : 'no tokens'}, but a loss is that of a token after another. Give a longer text.`,
    );
  }
  if (order !== 'in turn' && length < seq + 2) {
    throw new UsageError(
      `${flag}: ${name} has ${length} tokens, but --seq ${seq} needs at least ${seq + 2}. Give a longer text or a smaller --seq.`,
    );
  }
  return streamRows(file, { first, end, batch, seq, seed, order });
}

/** @throws {UsageError} for tokens that the model does not have */
export function checkVocabulary(
  { tokenizer, modelConfig }: Pick<DataConfig, 'tokenizer' | 'modelConfig'>,
  { file, name }: Pick<Source, 'file' | 'name'>,
): void {
  const { largest } = file.index;
  if (largest >= modelConfig.vocab_size) {
    throw new UsageError(
      `--tokenizer ${tokenizer}: ${name} has token ${largest}, but the model's vocabulary ends at ${modelConfig.vocab_size - 1}. Choose another --tokenizer, or a --model with a larger vocabulary.`,
    );
  }
}

/**
 * Refuses documents without any counted target: nobody writes a document to learn nothing from it,
 * so a role or a field is misspelt.
 */
async function checkCounted({ trainOnPrompt }: DataConfig, source: Source): Promise<void> {
  const { file, name, path, flag } = source;
  const mute = documentsOf(source).find((i) => {
    const { counted, length } = file.document(i);
    return trainOnPrompt ? length < 2 : counted === 0;
  });
  if (mute === undefined) {
    return;
  }
  const { line } = file.document(mute);
  const told = await entryAt(path, { flag, line });
  const place = told?.place ?? placeIn(name, formatOf(path, flag), line);
  const roles = told?.roles.join(', ');
  throw new UsageError(
    `${flag}: ${place}: expected something to learn, got a document that is all prompt${roles ? ` (roles: ${roles})` : ''}. Add what the assistant says, leave the line out, or count prompts with --train-on-prompt.`,
  );
}

/** The place of a document, and the roles in it, where the data itself can still be read. */
async function entryAt(
  path: string | undefined,
  { flag, line }: { readonly flag: string; readonly line: number },
): Promise<{ readonly place: string; readonly roles: readonly string[] } | undefined> {
  try {
    const source = await DataSource.open(path, flag);
    for await (const { number, text, place } of source.entries()) {
      if (number === line) {
        return { place, roles: rolesIn(JSON.parse(text) as Record<string, unknown>) };
      }
    }
  } catch {
    // The tokens were made of the data as it was; only the hint is missing.
  }
  return undefined;
}
