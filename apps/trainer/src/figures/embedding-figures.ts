// The figures of an embedder: how well queries find their documents among all documents of the
// examples, or how well cosines follow scores.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Module } from '@shardweave/nn';
import { type EmbeddingArgs, embedDocuments, type TypedDocument } from '@shardweave/nn/embedding';
import { type Device, matmul, type Tensor } from '@shardweave/tensor-core';
import type { Examples } from '../data/example-data.js';
import { rowLengthOf } from '../data/row-length.js';
import type { RunConfig } from '../run-config.js';
import type { EmbedHead } from '../task/task-head.js';
import type { Figures } from './figures.js';
import { placesOf, rankingFigures, spearman } from './ranking-figures.js';
import { summed } from './task-figures.js';

export interface EmbeddingFiguresOptions {
  readonly device: Device;
  readonly module: Module<EmbeddingArgs, Tensor>;
  readonly data: Examples;
  readonly group: ProcessGroup;
  readonly config: Pick<RunConfig, 'chunkSize' | 'seq'>;
  readonly head: EmbedHead;
}

/** The queries whose scores are on the host at once. */
const QUERIES = 64;

/** Embeds all texts, each rank its part of them. Collective; the model is in evaluation mode. */
export async function embeddingFigures(options: EmbeddingFiguresOptions): Promise<Figures> {
  const { data } = options;
  const places = Array.from({ length: data.count }, (_, i) => i);
  const examples = await data.at(places);
  const [queries, documents] = [new TextSet(), new TextSet()];
  const own = examples.map(({ texts: [query, ...others], labels }) => ({
    query: queries.add(query!),
    documents: others.map((document) => documents.add(document)),
    score: labels[0],
  }));
  const queryRows = await embedAll(queries.texts, options);
  const documentRows = await embedAll(documents.texts, options);
  const scored = own.filter(({ score }) => score !== undefined);
  if (scored.length > 0) {
    const cosines = scored.map(({ query, documents: [document] }) =>
      dot(queryRows.row(query), documentRows.row(document!)),
    );
    return {
      values: {
        spearman: spearman(
          cosines,
          scored.map(({ score }) => score!),
        ),
      },
    };
  }
  const answers = new Map<number, Set<number>>();
  for (const {
    query,
    documents: [document],
  } of own) {
    answers.set(query, (answers.get(query) ?? new Set()).add(document!));
  }
  return rankingFigures(await answerPlaces(answers, { queryRows, documentRows }, options.device));
}

/** Texts, each once. */
class TextSet {
  readonly texts: TypedDocument[] = [];
  readonly #numbers = new Map<string, number>();

  add(text: TypedDocument): number {
    const key = Array.from(text.ids).join();
    const number = this.#numbers.get(key) ?? this.texts.length;
    if (number === this.texts.length) {
      this.texts.push(text);
      this.#numbers.set(key, number);
    }
    return number;
  }
}

/** Embeddings on the host, [count, width]. */
class Rows {
  readonly values: Float32Array<ArrayBuffer>;
  readonly width: number;

  constructor(values: Float32Array<ArrayBuffer>, width: number) {
    this.values = values;
    this.width = width;
  }

  get count(): number {
    return this.values.length / this.width;
  }

  row(i: number): Float32Array {
    return this.values.subarray(i * this.width, (i + 1) * this.width);
  }

  /** Makes the length of each row 1. */
  normalize(): void {
    for (let i = 0; i < this.count; i++) {
      const row = this.row(i);
      const length = Math.sqrt(dot(row, row));
      row.forEach((value, j) => {
        row[j] = value / (length || 1);
      });
    }
  }
}

async function embedAll(
  texts: readonly TypedDocument[],
  { device, module, group, config, head }: EmbeddingFiguresOptions,
): Promise<Rows> {
  const { chunkSize, seq } = config;
  const { rank, worldSize } = group;
  const rowLength = rowLengthOf(texts, seq);
  let values: Float32Array<ArrayBuffer> | undefined;
  let width = 0;
  // The ranks take chunks in turn. All run the model as often, as shards are gathered for it.
  for (let first = 0; first < texts.length; first += chunkSize * worldSize) {
    const start = Math.min(first + rank * chunkSize, texts.length - 1);
    const chunk = texts.slice(start, start + chunkSize);
    const rows = await device.noGrad(() =>
      device.scope(async () => {
        const ids = chunk.map((text) => text.ids);
        const embedded: Tensor = await embedDocuments(module, ids, { rowLength });
        width = embedded.shape[1]!;
        return (await embedded.toArray()) as Float32Array;
      }),
    );
    values ??= new Float32Array(texts.length * width);
    if (first + rank * chunkSize < texts.length) {
      values.set(rows, start * width);
    }
  }
  const found = new Rows(await summed(values!, group), width);
  if (head.similarity !== 'dot') {
    found.normalize();
  }
  return found;
}

/** The places of the answers of each query among all documents. */
async function answerPlaces(
  answers: ReadonlyMap<number, ReadonlySet<number>>,
  { queryRows, documentRows }: { readonly queryRows: Rows; readonly documentRows: Rows },
  device: Device,
): Promise<number[][]> {
  const { width, count } = documentRows;
  const columns = new Float32Array(width * count);
  for (let i = 0; i < count; i++) {
    for (const [j, value] of documentRows.row(i).entries()) {
      columns[j * count + i] = value;
    }
  }
  const places: number[][] = [];
  await device.noGrad(() =>
    device.scope(async () => {
      const all = device.tensor(columns, [width, count]);
      for (let first = 0; first < queryRows.count; first += QUERIES) {
        const end = Math.min(first + QUERIES, queryRows.count);
        const scores = await device.scope(async () => {
          const part = queryRows.values.slice(first * width, end * width);
          const rows = device.tensor(part, [end - first, width]);
          return (await matmul(rows, all).toArray()) as Float32Array;
        });
        for (let query = first; query < end; query++) {
          const own = scores.subarray((query - first) * count, (query - first + 1) * count);
          places.push(placesOf(own, [...answers.get(query)!]));
        }
      }
    }),
  );
  return places;
}

function dot(a: Float32Array, b: Float32Array): number {
  return a.reduce((sum, value, i) => sum + value * b[i]!, 0);
}
