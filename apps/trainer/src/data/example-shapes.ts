// The shapes in which people keep examples of a task: pairs to embed, texts with labels, and
// queries with what answers them. FIELDS is the table of the names that others use.

import { UsageError } from '../errors.js';
import { excerpt, notWords, words } from './line-shapes.js';

/** What a model can be trained for beside writing text, by texts that are examples. */
export type ExampleTask = 'embed' | 'classify' | 'rerank';

/** An example of a task. */
export interface Example {
  /** A query, or the text that is classified. */
  readonly first: string;
  /** What belongs to a query, or the other text of a pair. */
  readonly second?: string | undefined;
  /** What does not belong to the query. */
  readonly negatives: readonly string[];
  /** The names of a text's labels; a pair to embed or to rank has none. */
  readonly labels?: readonly string[] | undefined;
  /** How much the two texts belong together; undefined where nobody has said. */
  readonly score?: number | undefined;
  /** What a line says: data sets keep to one kind. */
  readonly kind: 'pairs' | 'scored pairs' | 'one label' | 'several labels';
}

type Fields = Readonly<Record<string, unknown>>;

/** Names of the same field in other people's data, our own first. */
const FIELDS = {
  query: ['query', 'anchor', 'question'],
  positive: ['positive', 'pos', 'answer', 'document', 'passage'],
  negative: /^neg(atives?)?(_?\d+)?$/,
  a: ['a', 'sentence1', 'text1'],
  b: ['b', 'sentence2', 'text2'],
  score: ['score', 'similarity_score'],
  text: ['text', 'sentence', 'content', 'premise', 'sentence1', 'text1'],
  label: ['label', 'labels', 'category', 'class'],
} as const;

/** The texts among them that are all of a line's field. */
const OWN_NAMES: Readonly<Record<string, readonly string[]>> = {
  ...{ query: FIELDS.query, positive: FIELDS.positive, text: FIELDS.text },
  ...{ a: FIELDS.a, b: FIELDS.b },
};

/** The names of two texts that are classified together, as the tasks of GLUE have them. */
const TEXT_PAIRS = [
  ['text', 'text_pair'],
  ['premise', 'hypothesis'],
  ['sentence1', 'sentence2'],
  ['text1', 'text2'],
  ['question1', 'question2'],
  ['question', 'sentence'],
  ['question', 'passage'],
] as const;

/** The scores that a loss can reach. */
const COSINES = { least: -1, most: 1, why: 'as cosines are' };
const ANSWERS = { least: 0, most: 1, why: 'from no answer to an answer' };

const SHAPES: Readonly<Record<ExampleTask, string>> = {
  embed: '{"query", "positive", "negatives"?} or {"a", "b", "score"}',
  classify: '{"text", "label"}',
  rerank: '{"query", "positive", "negatives"} or {"query", "document", "score"}',
};

/**
 * The examples of a line's object: one, or one for each of several positives.
 * @throws {UsageError} without the place, which the caller knows
 */
export function readExamples(value: Fields, task: ExampleTask): Example[] {
  const found = READERS[task](value);
  if (found === undefined) {
    const keys = Object.keys(value).map((key) => JSON.stringify(key));
    throw new UsageError(
      `expected ${SHAPES[task]} for --task ${task}, got an object with ${keys.join(', ') || 'nothing in it'}. Rename the fields.`,
    );
  }
  return found;
}

const READERS: Readonly<Record<ExampleTask, (value: Fields) => Example[] | undefined>> = {
  embed: (value) => {
    const [a, b, score] = [nameIn(value, 'a'), nameIn(value, 'b'), nameIn(value, 'score')];
    if (a !== undefined && b !== undefined && score !== undefined) {
      const texts = { first: words(value, a), second: words(value, b) };
      return [
        { ...texts, negatives: [], score: scoreIn(value, score, COSINES), kind: 'scored pairs' },
      ];
    }
    return pairsIn(value);
  },
  classify: (value) => {
    const pair = TEXT_PAIRS.find((names) => names.every((name) => has(value, name)));
    const [text, other] = pair ?? [nameIn(value, 'text')];
    const label = nameIn(value, 'label');
    if (text === undefined || label === undefined) {
      return undefined;
    }
    const { labels, kind } = labelsIn(value, label);
    const second = other === undefined ? undefined : words(value, other);
    return [{ first: words(value, text), second, negatives: [], labels, kind }];
  },
  rerank: (value) => {
    const [query, positive] = [nameIn(value, 'query'), nameIn(value, 'positive')];
    const score = nameIn(value, 'score') ?? nameIn(value, 'label');
    if (query === undefined || positive === undefined || score === undefined) {
      return rankedIn(value);
    }
    const rated = scoreIn(value, score, ANSWERS);
    const texts = { first: words(value, query), second: words(value, positive) };
    return [{ ...texts, negatives: [], score: rated, kind: 'scored pairs' }];
  },
};

/** Pairs to rank, which say nothing without documents that are no answer. */
function rankedIn(value: Fields): Example[] | undefined {
  const pairs = pairsIn(value);
  if (pairs?.some(({ negatives }) => negatives.length === 0) === true) {
    throw new UsageError(
      'expected "negatives" beside the query, documents that do not answer it, got none. Find some with shardweave embed --mine-negatives, or give a "score".',
    );
  }
  return pairs;
}

function pairsIn(value: Fields): Example[] | undefined {
  const [query, positive] = [nameIn(value, 'query'), nameIn(value, 'positive')];
  if (query === undefined || positive === undefined) {
    return undefined;
  }
  const first = words(value, query);
  const negatives = Object.keys(value)
    .filter((name) => FIELDS.negative.test(name))
    .flatMap((name) => listIn(value, name));
  const positives = listIn(value, positive);
  if (positives.length === 0) {
    throw notWords(positive, value[positive]);
  }
  return positives.map((second) => ({ first, second, negatives, kind: 'pairs' }));
}

/** The first of a field's names that a line has. */
function nameIn(value: Fields, field: Exclude<keyof typeof FIELDS, 'negative'>) {
  return FIELDS[field].find((name) => has(value, name));
}

/**
 * The name under which a line has a field of ours: that name, or else the first of its other names.
 * Undefined where it has none of them.
 */
export function fieldIn(value: Fields, field: string): string | undefined {
  const names: readonly string[] = Object.hasOwn(OWN_NAMES, field) ? OWN_NAMES[field]! : [];
  return field in value ? field : names.find((name) => has(value, name));
}

function has(value: Fields, name: string): boolean {
  return value[name] !== undefined && value[name] !== null;
}

/** One text, or a list of them. What a table leaves empty is none. */
function listIn(value: Fields, name: string): string[] {
  const held = value[name] ?? '';
  const all: unknown[] = Array.isArray(held) ? held : held === '' ? [] : [held];
  const wrong = all.find((text) => typeof text !== 'string' || text === '');
  if (wrong !== undefined) {
    throw notWords(name, wrong);
  }
  return all as string[];
}

function labelsIn(value: Fields, name: string): Pick<Example, 'labels' | 'kind'> {
  const held = value[name];
  const isList = Array.isArray(held);
  const all: unknown[] = isList ? held : [held];
  const wrong = all.find((label) => !isLabel(label));
  if (wrong !== undefined) {
    throw new UsageError(
      `expected a label, which is a text or a whole number, or a list of labels in "${name}", got ${excerpt(JSON.stringify(wrong))}. Name each class.`,
    );
  }
  return {
    labels: all.map((label) => String(label).trim()),
    kind: isList ? 'several labels' : 'one label',
  };
}

function isLabel(value: unknown): boolean {
  return (
    typeof value === 'boolean' ||
    Number.isInteger(value) ||
    (typeof value === 'string' && value.trim() !== '')
  );
}

function scoreIn(value: Fields, name: string, { least, most, why }: typeof COSINES): number {
  const held = value[name];
  const isNumber = typeof held === 'number' || (typeof held === 'string' && held.trim() !== '');
  const score = isNumber ? Number(held) : typeof held === 'boolean' ? Number(held) : Number.NaN;
  if (!Number.isFinite(score)) {
    throw new UsageError(
      `expected a number in "${name}", got ${excerpt(JSON.stringify(held))}. Write it as 0.8, for instance.`,
    );
  }
  if (score < least || score > most) {
    throw new UsageError(
      `expected "${name}" from ${least} to ${most}, ${why}, got ${score}. Divide scores by the largest one.`,
    );
  }
  return score;
}
