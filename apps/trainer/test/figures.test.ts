// The figures of a task are those that a plain count in float64 finds, also where scores are equal
// or none, and have equal bits on any number of ranks.

import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { EmbeddingModel, Encoder, embedDocuments } from '@shardweave/nn/embedding';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it, onTestFinished } from 'vitest';
import { SMALL } from '../../../packages/onnx/test/support/small-encoder.ts';
import { embeddingFigures } from '../src/figures/embedding-figures.js';
import type { Figures, Judged } from '../src/figures/figures.js';
import { placesOf, rankingFigures, spearman } from '../src/figures/ranking-figures.js';
import { scoreboardOf } from '../src/figures/task-figures.js';
import { splitMix32 } from '../src/seeded-random.js';
import type { ClassHead } from '../src/task/task-head.js';
import { linesFile, modelFolder, openTask } from './support/example-files.ts';

const SINGLE: ClassHead = {
  ...{ kind: 'classify', problemType: 'single_label_classification' },
  labels: ['calm', 'storm', 'fog', 'never'],
};
const SEVERAL: ClassHead = { ...SINGLE, problemType: 'multi_label_classification' };
const RERANK: ClassHead = { ...SEVERAL, kind: 'rerank', labels: ['LABEL_0'] };

const judged = (logits: readonly number[], ...labels: number[]): Judged => ({
  logits: Float32Array.from(logits),
  labels,
});

/** The figures that each of the ranks finds, who have examples in turn. */
function figuresOn(ranks: number, head: ClassHead, all: readonly Judged[]): Promise<Figures[]> {
  return onRanks(ranks, async (group) => {
    const board = scoreboardOf(head, all.length)!;
    all.forEach((one, i) => void (i % ranks === group.rank && board.add(one, i)));
    return await board.figures(group);
  });
}

function onRanks<T>(ranks: number, work: (group: ProcessGroup) => Promise<T>): Promise<T[]> {
  return Promise.all(createMemoryGroup(ranks).map(work));
}

/** Figures of one rank, after those of each rank of two and of three were found to be equal. */
async function figuresOf(head: ClassHead, all: readonly Judged[]): Promise<Figures> {
  const [own] = await figuresOn(1, head, all);
  for (const ranks of [2, 3]) {
    expect(await figuresOn(ranks, head, all)).toEqual(Array.from({ length: ranks }, () => own));
  }
  return own!;
}

/** Numbers from -1 to 1. */
function numbersOf(seed: number): () => number {
  const next = splitMix32(seed, 0);
  return () => next() / 2 ** 31 - 1;
}

/** What is said of a class by pairs of whether a text was given it and has it. */
function classOf(label: string, pairs: readonly (readonly [given: boolean, had: boolean])[]) {
  const count = (of: (given: boolean, had: boolean) => boolean) =>
    pairs.filter(([given, had]) => of(given, had)).length;
  const both = count((given, had) => given && had);
  const [given, had] = [count((own) => own), count((_, own) => own)];
  const precision = given === 0 ? 0 : both / given;
  const recall = had === 0 ? 0 : both / had;
  const f1 = both === 0 ? 0 : (2 * precision * recall) / (precision + recall);
  return { label, precision, recall, f1: expect.closeTo(f1, 12), support: had, exact: f1 };
}

const shown = ({ exact: _, ...rest }: ReturnType<typeof classOf>) => rest;
const mean = (values: readonly number[]) =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

describe('the figures of a classifier', () => {
  it('are those of a plain count, with a class that no text has or is given', async () => {
    const next = numbersOf(1);
    const all = Array.from({ length: 50 }, (_, i) =>
      judged([next() + (i % 3 === 0 ? 0.7 : 0), next(), next(), -9], i % 3),
    );
    const given = all.map(({ logits }) => logits.indexOf(Math.max(...logits)));
    const had = all.map(({ labels }) => labels[0]!);
    const classes = SINGLE.labels.map((label, id) =>
      classOf(
        label,
        all.map((_, i) => [given[i] === id, had[i] === id]),
      ),
    );
    const found = await figuresOf(SINGLE, all);
    expect(found.classes).toEqual(classes.map(shown));
    expect(found.values).toEqual({
      accuracy: all.filter((_, i) => given[i] === had[i]).length / 50,
      f1: expect.closeTo(mean(classes.slice(0, 3).map(({ exact }) => exact)), 12),
    });
    expect(found.confusion).toEqual(
      SINGLE.labels.map((_, row) =>
        SINGLE.labels.map(
          (_, column) => all.filter((_, i) => had[i] === row && given[i] === column).length,
        ),
      ),
    );
  });

  it('are the numbers of this example, counted by hand', async () => {
    const all = [
      ...[judged([1, 0, 0, 0], 0), judged([1, 0, 0, 0], 0), judged([0, 1, 0, 0], 0)],
      ...[judged([0, 1, 0, 0], 1), judged([1, 1, 0, 0], 1), judged([0, 0, 0, 1], 2)],
    ];
    expect(await figuresOf(SINGLE, all)).toEqual({
      // A class that no text has counts where one is given it.
      values: { accuracy: 0.5, f1: expect.closeTo((2 / 3 + 1 / 2 + 0 + 0) / 4, 12) },
      classes: [
        { label: 'calm', precision: 2 / 3, recall: 2 / 3, f1: 2 / 3, support: 3 },
        { label: 'storm', precision: 0.5, recall: 0.5, f1: 0.5, support: 2 },
        { label: 'fog', precision: 0, recall: 0, f1: 0, support: 1 },
        { label: 'never', precision: 0, recall: 0, f1: 0, support: 0 },
      ],
      confusion: [
        [2, 1, 0, 0],
        [1, 1, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 0],
      ],
    });
  });

  it('count a text whose logits are NaN as a wrong one', async () => {
    const none = [Number.NaN, 0, 0, 0];
    const all = [judged([1, 0, 0, 0], 0), judged(none, 0), judged(none, 1), judged(none, 1)];
    const { values, classes, confusion } = await figuresOf(SINGLE, all);
    expect(values).toEqual({ accuracy: 0.25, f1: expect.closeTo(1 / 3, 12) });
    expect(classes!.map(({ support, recall }) => [support, recall])).toEqual([
      ...[
        [2, 0.5],
        [2, 0],
      ],
      ...[
        [0, 0],
        [0, 0],
      ],
    ]);
    expect(confusion).toEqual([[1, 0, 0, 0], ...Array.from({ length: 3 }, () => [0, 0, 0, 0])]);
    expect((await figuresOf(SEVERAL, [judged(none), judged([1, -1, -1, -1], 0)])).values).toEqual({
      ...{ accuracy: 0.5, f1: 1 },
    });
  });

  it('are those of a plain count for several labels a text', async () => {
    const next = numbersOf(2);
    const all = Array.from({ length: 40 }, (_, i) =>
      judged([next(), next(), next(), -1], ...[0, 1, 2].filter((id) => (i + id) % (id + 2) === 0)),
    );
    const classes = SEVERAL.labels.map((label, id) =>
      classOf(
        label,
        all.map(({ logits, labels }) => [logits[id]! > 0, labels.includes(id)]),
      ),
    );
    const found = await figuresOf(SEVERAL, all);
    expect(found.classes).toEqual(classes.map(shown));
    expect(found.confusion).toBeUndefined();
    const exact = all.filter(({ logits, labels }) =>
      [0, 1, 2, 3].every((id) => logits[id]! > 0 === labels.includes(id)),
    );
    expect(exact.length).toBeGreaterThan(0);
    expect(found.values).toEqual({
      accuracy: exact.length / 40,
      f1: expect.closeTo(mean(classes.slice(0, 3).map(({ exact: f1 }) => f1)), 12),
    });
  });
});

/** nDCG@10 of documents of which some answer, by the order of their scores. */
function ndcgOf(scores: readonly number[], answers: ReadonlySet<number>): number {
  const order = scores.map((_, i) => i).sort((i, j) => scores[j]! - scores[i]!);
  const gains = order.map((i) => Number(answers.has(i)));
  const sum = (list: readonly number[]) =>
    list.slice(0, 10).reduce((all, gain, i) => all + (2 ** gain - 1) / Math.log2(i + 2), 0);
  return sum(gains) / sum([...gains].sort((a, b) => b - a));
}

describe('the figures of a ranking', () => {
  it('are those of the order of scores', () => {
    const next = numbersOf(3);
    const queries = Array.from({ length: 30 }, (_, i) => {
      const scores = Array.from({ length: 25 }, next);
      return { scores, answers: new Set(Array.from({ length: 1 + (i % 12) }, (_, j) => 2 * j)) };
    });
    const { values } = rankingFigures(
      queries.map(({ scores, answers }) => placesOf(scores, [...answers])),
    );
    const higher = ({ scores }: (typeof queries)[number], i: number) =>
      scores.filter((score) => score > scores[i]!).length;
    const recall = (cut: number) =>
      mean(
        queries.map((query) => {
          const found = [...query.answers].filter((i) => higher(query, i) < cut);
          return found.length / query.answers.size;
        }),
      );
    const first = queries.map((query) =>
      Math.min(...[...query.answers].map((i) => higher(query, i))),
    );
    expect(values).toEqual({
      'ndcg@10': expect.closeTo(
        mean(queries.map((query) => ndcgOf(query.scores, query.answers))),
        12,
      ),
      mrr: expect.closeTo(mean(first.map((before) => 1 / (before + 1))), 12),
      'recall@1': expect.closeTo(recall(1), 12),
      'recall@10': expect.closeTo(recall(10), 12),
    });
    expect(Object.keys(values)).toEqual(['ndcg@10', 'mrr', 'recall@1', 'recall@10']);
  });

  it('are the numbers of these places', () => {
    expect(rankingFigures([[1], [3], [11], [2, 12]]).values).toEqual({
      'ndcg@10': expect.closeTo(
        (1 + 1 / 2 + 0 + 1 / Math.log2(3) / (1 + 1 / Math.log2(3))) / 4,
        12,
      ),
      mrr: expect.closeTo((1 + 1 / 3 + 1 / 11 + 1 / 2) / 4, 12),
      'recall@1': 1 / 4,
      'recall@10': 2.5 / 4,
    });
    expect(rankingFigures([[10], [11]]).values).toMatchObject({ 'recall@10': 0.5 });
  });

  it('praise no model that tells nothing apart, or says nothing', () => {
    expect(placesOf([1, 1, 1, 1], [0])).toEqual([4]);
    expect(placesOf([1, 1, 1, 1], [0, 2])).toEqual([3, 4]);
    expect(placesOf([0, 2, 2, 1], [3, 1])).toEqual([2, 4 - 1]);
    expect(placesOf([Number.NaN, 2, 1], [0])).toEqual([3]);
    expect(placesOf([Number.NaN, 2, 1], [1])).toEqual([2]);
    expect(placesOf([Number.NaN, Number.NaN], [0])).toEqual([2]);
    expect(placesOf([0, -0], [1])).toEqual([2]);
  });

  it('are those of each query among its own documents for a reranker', async () => {
    const next = numbersOf(4);
    const all = Array.from({ length: 20 }, (_, i) =>
      judged(Array.from({ length: 2 + (i % 14) }, next), 1, ...Array(1 + (i % 14)).fill(0)),
    );
    const places = all.map(
      ({ logits }) => [...logits].filter((logit) => logit >= logits[0]!).length,
    );
    const { values } = await figuresOf(RERANK, all);
    expect(values).toEqual({
      'ndcg@10': expect.closeTo(
        mean(all.map(({ logits }) => ndcgOf([...logits], new Set([0])))),
        12,
      ),
      mrr: expect.closeTo(mean(places.map((place) => 1 / place)), 12),
      'recall@1': expect.closeTo(mean(places.map((place) => Number(place === 1))), 12),
      'recall@10': expect.closeTo(mean(places.map((place) => Number(place <= 10))), 12),
    });
  });

  it('are how often the likelier answer is right, where pairs have scores', async () => {
    const all = [
      judged([2], 1),
      judged([-1], 0),
      judged([1], 0),
      judged([-3], 1),
      judged([1], 0.75),
    ];
    expect(await figuresOf(RERANK, all)).toEqual({ values: { accuracy: 3 / 5 } });
    expect(await figuresOf(RERANK, [judged([Number.NaN], 0), judged([-1], 0)])).toEqual({
      values: { accuracy: 0.5 },
    });
  });
});

describe("Spearman's correlation", () => {
  it('is that of scipy 1.17 (scipy.stats.spearmanr), of equal values too', () => {
    expect(spearman([1, 2, 3, 4], [10, 20, 25, 90])).toBe(1);
    expect(spearman([1, 2, 3, 4], [4, 3, 2, 1])).toBe(-1);
    const [a, b] = [
      [0.1, 0.4, 0.4, 0.9, -0.3, 0.4, 0.7, 0.1],
      [1, 3, 2, 5, 0, 3, 3, 2],
    ];
    expect(spearman(a!, b!)).toBeCloseTo(0.9177215189873418, 12);
    expect(
      spearman([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4]),
    ).toBeCloseTo(0.1384567651467695, 12);
  });

  it('is none where a side says nothing, or has NaN', () => {
    expect(spearman([1, 1, 1], [1, 2, 3])).toBeNaN();
    expect(spearman([1], [1])).toBeNaN();
    expect(spearman([3, Number.NaN, 1, 2], [3, 4, 1, 2])).toBeNaN();
    expect(spearman([3, 4, 1, 2], [3, Number.NaN, 1, 2])).toBeNaN();
  });
});

describe('the figures of an embedder', () => {
  const model = modelFolder();
  const pooled = { pooling: 'mean', normalize: true } as const;
  const head = { kind: 'embed', ...pooled } as const;
  const texts = [
    'call me',
    'some years',
    'never mind how long',
    'ago',
    'money in my purse',
    'sail about',
  ];

  /** The figures on one, two and three ranks, and all embeddings, each made alone. */
  async function figuresIn(lines: readonly object[], own: readonly string[]) {
    const file = linesFile(lines);
    await using data = await openTask(
      `--model ${model} --task embed --batch 1 --data ${file} --valid ${file}`,
    );
    const backend = await createCpuBackend({ threads: 1 });
    onTestFinished(() => backend.dispose());
    const config = { chunkSize: 2, seq: 32 };
    const made = () => {
      const device = new Device(backend);
      onTestFinished(() => device.dispose());
      const module = new EmbeddingModel(new Encoder(device, SMALL, { seed: 7 }), pooled);
      return { device, module: module.eval() };
    };
    const found: Figures[] = [];
    for (const ranks of [1, 2, 3]) {
      found.push(
        ...(await onRanks(ranks, (group) =>
          embeddingFigures({ ...made(), group, config, head, data: data.valid! }),
        )),
      );
    }
    const { device, module } = made();
    const all = await data.valid!.at(lines.map((_, i) => i));
    const rows = new Map<string, readonly number[]>();
    for (const [
      i,
      {
        texts: [query, document],
      },
    ] of all.entries()) {
      for (const [name, text] of [
        [own[2 * i]!, query!],
        [own[2 * i + 1]!, document!],
      ] as const) {
        const row = await device.noGrad(() => embedDocuments(module, [text.ids], {}));
        rows.set(name, [...((await row.toArray()) as Float32Array)]);
      }
    }
    expect(new Set(found.map((figures) => JSON.stringify(figures))).size).toBe(1);
    expect(found).toHaveLength(6);
    return { values: found[0]!.values, rows };
  }

  const cosine = (a: readonly number[], b: readonly number[]) => {
    const dot = (u: readonly number[], v: readonly number[]) =>
      u.reduce((sum, x, i) => sum + x * v[i]!, 0);
    return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  };

  it('are of each query among all documents, where a query has several answers', async () => {
    const pairs = [
      ...[
        [0, 1],
        [2, 3],
        [0, 5],
        [4, 1],
        [3, 2],
      ],
    ].map(([query, document]) => [texts[query!]!, texts[document!]!] as const);
    const { values, rows } = await figuresIn(
      pairs.map(([query, positive]) => ({ query, positive })),
      pairs.flat(),
    );
    const queries = [...new Set(pairs.map(([query]) => query))];
    const documents = [...new Set(pairs.map(([, document]) => document))];
    const parts = queries.map((query) => {
      const scores = documents.map((document) => cosine(rows.get(query)!, rows.get(document)!));
      const own = pairs
        .filter(([name]) => name === query)
        .map(([, name]) => documents.indexOf(name));
      const best = Math.max(...own.map((i) => scores[i]!));
      return {
        ndcg: ndcgOf(scores, new Set(own)),
        rank: 1 / (1 + scores.filter((score) => score > best).length),
      };
    });
    expect(values['ndcg@10']).toBeCloseTo(mean(parts.map(({ ndcg }) => ndcg)), 12);
    expect(values.mrr).toBeCloseTo(mean(parts.map(({ rank }) => rank)), 12);
    expect(values['recall@10']).toBe(1);
  });

  it('are how cosines follow scores, where pairs have scores', async () => {
    const scores = [0.9, 0.1, 0.5, 0.1, 0.7];
    const lines = scores.map((score, i) => ({ a: texts[i]!, b: texts[i + 1]!, score }));
    const { values, rows } = await figuresIn(
      lines,
      lines.flatMap(({ a, b }) => [a, b]),
    );
    const cosines = lines.map(({ a, b }) => cosine(rows.get(a)!, rows.get(b)!));
    expect(values).toEqual({ spearman: expect.closeTo(spearman(cosines, scores), 12) });
  });
});
