// The figures of an embedder: how well queries find their documents among all documents of the
// examples, or how well cosines follow scores.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Module } from '@shardweave/nn';
import type { EmbeddingArgs, TypedDocument } from '@shardweave/nn/embedding';
import type { Device, Tensor } from '@shardweave/tensor-core';
import type { Examples } from '../data/example-data.js';
import { rowLengthOf } from '../data/row-length.js';
import type { RunConfig } from '../run-config.js';
import type { EmbedHead } from '../task/task-head.js';
import { Distinct } from './distinct.js';
import { type Compared, dot, EmbeddingRows, eachQuery, embedRows } from './embedding-rows.js';
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

/** Embeds all texts, each rank its part of them. Collective; the model is in evaluation mode. */
export async function embeddingFigures(options: EmbeddingFiguresOptions): Promise<Figures> {
  const { data } = options;
  const places = Array.from({ length: data.count }, (_, i) => i);
  const examples = await data.at(places);
  const [queries, documents] = [new Distinct<TypedDocument>(), new Distinct<TypedDocument>()];
  const own = examples.map(({ texts: [query, ...others], labels }) => ({
    query: queries.add(keyOf(query!), query!),
    documents: others.map((document) => documents.add(keyOf(document), document)),
    score: labels[0],
  }));
  const queryRows = await embedAll(queries.items, options);
  const documentRows = await embedAll(documents.items, options);
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
  const rows = { queries: queryRows, documents: documentRows };
  return {
    ...rankingFigures(await answerPlaces(answers, rows, options.device)),
    compared: { queries: queries.items.length, documents: documents.items.length },
  };
}

function keyOf({ ids }: TypedDocument): string {
  return Array.from(ids).join();
}

async function embedAll(
  texts: readonly TypedDocument[],
  { module, group, config, head }: EmbeddingFiguresOptions,
): Promise<EmbeddingRows> {
  const { chunkSize, seq } = config;
  const { rank, worldSize } = group;
  const rowLength = rowLengthOf(texts, seq);
  let values: Float32Array<ArrayBuffer> | undefined;
  let width = 0;
  // The ranks take chunks in turn. All run the model as often, as shards are gathered for it.
  for (let first = 0; first < texts.length; first += chunkSize * worldSize) {
    const start = Math.min(first + rank * chunkSize, texts.length - 1);
    const chunk = texts.slice(start, start + chunkSize);
    const rows = await embedRows(module, chunk, { rowLength });
    width = rows.width;
    values ??= new Float32Array(texts.length * width);
    if (first + rank * chunkSize < texts.length) {
      values.set(rows.values, start * width);
    }
  }
  const found = new EmbeddingRows(await summed(values!, group), width);
  if (head.similarity !== 'dot') {
    found.normalize();
  }
  return found;
}

/** The places of the answers of each query among all documents. */
async function answerPlaces(
  answers: ReadonlyMap<number, ReadonlySet<number>>,
  compared: Compared,
  device: Device,
): Promise<number[][]> {
  const places: number[][] = [];
  await eachQuery(device, compared, (query, scores) => {
    places.push(placesOf(scores, [...answers.get(query)!]));
  });
  return places;
}
