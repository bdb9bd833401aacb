// Finds hard negatives for pairs of queries and answers: all answers are embedded, and each query
// is compared with all of them.

import { DataSource, skippedNote } from '../data/data-source.js';
import { parseLine } from '../data/document.js';
import { eachEntry, hasNone } from '../data/each-entry.js';
import { readExamples } from '../data/example-shapes.js';
import { UsageError } from '../errors.js';
import { Distinct } from '../figures/distinct.js';
import { EmbeddingRows, eachQuery } from '../figures/embedding-rows.js';
import { promptsOf } from '../task/task-head.js';
import { DEFAULT_MARGIN, DEFAULT_NEGATIVES, type EmbedFlags } from './embed-flags.js';
import { hardest, similarityLimit } from './hard-negatives.js';
import type { PromptedTexts, TextEmbedder } from './text-embedder.js';

const FLAG = '--mine-negatives';

/** A line of pairs, with the numbers of its texts. */
interface PairLine {
  readonly fields: Readonly<Record<string, unknown>>;
  readonly query: number;
  readonly answers: readonly number[];
  /** The texts that the line itself names as no answers. */
  readonly negatives: readonly string[];
}

/** The pairs of a file. */
export interface Pairs {
  readonly lines: readonly PairLine[];
  readonly queries: PromptedTexts['texts'];
  /** The answers of all queries, each once. */
  readonly documents: PromptedTexts['texts'];
  /** A sentence about files that hold none. */
  readonly note: string | undefined;
}

/** @throws {UsageError} where the file can't be read, or a line holds no pair */
export async function readPairs(file: string): Promise<Pairs> {
  const source = await DataSource.open(file, FLAG, { isOfExamples: true });
  if (source.formats[0] === 'text') {
    throw new UsageError(
      `${FLAG}: ${file} is a text, and pairs are JSON lines, CSV, TSV or Parquet. Give a file of these.`,
    );
  }
  type Text = PromptedTexts['texts'][number];
  const [queries, documents] = [new Distinct<Text>(), new Distinct<Text>()];
  const lines: PairLine[] = [];
  await eachEntry(source, { onTokenized: () => {} }, async (entry) => {
    const fields = parseLine(entry.text);
    const examples = readExamples(fields, 'embed');
    if (examples.some(({ kind }) => kind === 'scored pairs')) {
      throw new UsageError(
        'expected a query and its answer, got a pair with a score. Keep the pairs that belong together, as {"query", "positive"}.',
      );
    }
    const place = () => `${FLAG}: ${entry.place}`;
    const { first, negatives } = examples[0]!;
    const query = queries.add(first, { text: first, place });
    const answers = examples.map(({ second }) => documents.add(second!, { text: second!, place }));
    lines.push({ fields, query, answers, negatives });
  });
  if (lines.length === 0) {
    throw hasNone(source, 'pairs');
  }
  const note = skippedNote(FLAG, source.skipped);
  return { lines, queries: queries.items, documents: documents.items, note };
}

export interface MineOptions {
  readonly flags: EmbedFlags;
  readonly signal: AbortSignal;
  /** Called with what is done, and of all. */
  readonly onProgress: (what: 'texts' | 'queries', done: number, total: number) => void;
}

/** What was found: the documents' numbers for each line. */
export async function mineNegatives(
  embedder: TextEmbedder,
  { lines, queries, documents }: Pairs,
  { flags, signal, onProgress }: MineOptions,
): Promise<readonly (readonly number[])[]> {
  const { negatives: count = DEFAULT_NEGATIVES, margin = DEFAULT_MARGIN } = flags;
  const { similarity } = embedder.head;
  const prompts = promptsOf(embedder.head);
  const total = queries.length + documents.length;
  const rowsOf = async (texts: PromptedTexts['texts'], prompt = '') => {
    const { width } = embedder;
    const rows = new EmbeddingRows(new Float32Array(texts.length * width), width);
    for (let first = 0; first < texts.length; first += flags.chunkSize) {
      signal.throwIfAborted();
      const chunk = texts.slice(first, first + flags.chunkSize);
      rows.values.set((await embedder.embed({ texts: chunk, prompt })).values, first * width);
      onProgress('texts', embedder.numTexts, total);
    }
    if (similarity !== 'dot') {
      rows.normalize();
    }
    return rows;
  };
  const compared = {
    documents: await rowsOf(documents, prompts.document),
    queries: await rowsOf(queries, prompts.query),
  };
  const ofQuery = queries.map((): number[] => []);
  for (const [line, { query }] of lines.entries()) {
    ofQuery[query]!.push(line);
  }
  const numbers = new Map(documents.map(({ text }, number) => [text, number]));
  const found: number[][] = [];
  await eachQuery(embedder.device, compared, (query, scores) => {
    signal.throwIfAborted();
    const own = ofQuery[query]!;
    const answers = own.flatMap((line) => lines[line]!.answers);
    for (const line of own) {
      const { answers: positives, negatives } = lines[line]!;
      const known = negatives.flatMap((text) => numbers.get(text) ?? []);
      found[line] = hardest(scores, {
        count,
        limit: similarityLimit(Math.min(...positives.map((answer) => scores[answer]!)), margin),
        answers: new Set([...answers, ...known]),
      });
    }
    onProgress('queries', query + 1, queries.length);
  });
  return found;
}

/** A line with the negatives that were found for it behind those that it has under that name. */
export function minedLine({ fields }: PairLine, found: readonly string[]): string {
  const own = [fields.negatives ?? []].flat().filter((text) => text !== '');
  return `${JSON.stringify({ ...fields, negatives: [...own, ...found] })}\n`;
}
