// The examples of a run as the batches that each rank takes. A batch is examples, and not rows:
// the task's objective packs their texts.

import type { TypedDocument } from '@shardweave/nn/embedding';
import { UsageError } from '../errors.js';
import type { RunConfig, TokenFiles, TokenPart } from '../run-config.js';
import { splitMix32 } from '../seeded-random.js';
import { isPreference, labelId } from '../task/task-head.js';
import { answerPair, isCut, pairLength, requireAnswers } from './answer-pairs.js';
import { checkVocabulary, type Dataset, type RunData } from './dataset.js';
import { type ExampleDocuments, ExampleFile, Framer } from './example-file.js';
import { numMicroSteps, permute, rowsOf } from './row-order.js';
import type { RowOrderName, RowOrigin } from './rows.js';

/** An example as the task's model gets it. */
export interface TaskExample {
  /**
   * A query, its document and negatives to embed; a text or a pair to classify; the pairs of a
   * query with its document and with each negative to rank; or the chosen and the rejected answer
   * behind their prompts.
   */
  readonly texts: readonly TypedDocument[];
  /**
   * A classifier's ids of labels; a number for each pair that is ranked; the score of a pair that
   * is embedded, if it has one; how likely a reference finds both answers, where there is one.
   */
  readonly labels: readonly number[];
}

/** The examples for one micro-step of one rank; there may be none. */
export interface ExampleBatch {
  readonly examples: readonly TaskExample[];
  /** The number of the first one among those of the step; dropout's masks depend on it. */
  readonly firstRow: number;
}

export type ExampleConfig = Pick<
  RunConfig,
  | 'head'
  | 'batch'
  | 'seq'
  | 'seed'
  | 'ranks'
  | 'gradAccum'
  | 'negatives'
  | 'modelConfig'
  | 'tokenizer'
> &
  Partial<Pick<RunConfig, 'gradientGroups' | 'strategy'>> &
  Pick<RunConfig, 'data' | 'valid' | 'validFraction' | 'evalBatches'> & {
    readonly order: RowOrderName;
  };

/** Which examples are kept apart does not depend on the run's seed, as with documents. */
const VALID_SEED = 0;

/**
 * Opens the examples that `prepareTokens` has made.
 * @throws {UsageError} for too few examples, and for labels that the model does not have
 */
export async function openExamples(
  config: ExampleConfig,
  files: TokenFiles,
): Promise<RunData<ExampleBatch>> {
  const open: ExampleFile[] = [];
  const opened = async ([part]: readonly TokenPart[]) => {
    const file = await ExampleFile.open(part!.directory); // of examples there is one part
    open.push(file);
    return file;
  };
  const close = async () => {
    await Promise.all(open.map((file) => file[Symbol.asyncDispose]()));
  };
  try {
    const file = await opened(files.train);
    const all = Uint32Array.from({ length: file.index.count }, (_, i) => i);
    const [train, apart] = split(file, all, config);
    const validFile = files.valid === undefined ? file : await opened(files.valid);
    const valid =
      files.valid === undefined
        ? apart
        : Uint32Array.from({ length: validFile.index.count }, (_, i) => i);
    const name = config.data!;
    return {
      train: new Examples(config, {
        file,
        numbers: train,
        order: config.order,
        flag: '--data',
        name,
      }),
      valid:
        valid &&
        new Examples(config, {
          file: validFile,
          numbers: valid.slice(0, config.evalBatches * config.batch),
          order: 'in turn',
          flag: config.valid === undefined ? '--valid-fraction' : '--valid',
          name: config.valid ?? name,
        }),
      [Symbol.asyncDispose]: close,
    };
  } catch (error) {
    await close();
    throw error;
  }
}

/** Splits examples off for evaluation, all of a line together. */
function split(
  file: ExampleFile,
  all: Uint32Array,
  { validFraction, data }: Pick<ExampleConfig, 'validFraction' | 'data'>,
): [train: Uint32Array, valid: Uint32Array | undefined] {
  if (validFraction === undefined) {
    return [all, undefined];
  }
  const lines = [...new Set(Array.from(all, (example) => file.lineOf(example)))];
  const numApart = Math.max(1, Math.round(lines.length * validFraction));
  if (numApart >= lines.length) {
    throw new UsageError(
      `--valid-fraction ${validFraction}: ${data} has examples in ${lines.length} lines, so none would be left to train on. Give more, a smaller fraction, or --valid with a file of its own.`,
    );
  }
  const order = permute(lines.length, VALID_SEED, 0).slice(0, numApart);
  const apart = new Set(Array.from(order, (i) => lines[i]));
  return [
    all.filter((example) => !apart.has(file.lineOf(example))),
    all.filter((example) => apart.has(file.lineOf(example))),
  ];
}

interface Chosen {
  readonly file: ExampleFile;
  /** The numbers of the examples to take. */
  readonly numbers: Uint32Array;
  readonly order: RowOrderName;
  readonly flag: string;
  readonly name: string;
}

/** A data set of examples. */
export class Examples implements Dataset<ExampleBatch> {
  readonly numSteps: number;
  readonly numMicroSteps: number;
  readonly size: Dataset['size'];
  /**
   * The logarithms of the probabilities of each pair's two answers by the model that training
   * begins beside, by the number of the pair; see rank/step/reference.ts.
   */
  readonly references = new Map<number, readonly number[]>();
  readonly #config: ExampleConfig;
  readonly #chosen: Chosen;
  readonly #framer: Framer;
  /** The examples of a whole step. */
  readonly #batch: number;
  /** The most negatives of an example; all have as many to embed, as all ranks must. */
  readonly #numNegatives: number;
  /** The model's ids of the file's labels. */
  readonly #labelIds: readonly number[];
  #epoch = -1;
  #order = new Uint32Array(0);

  constructor(config: ExampleConfig, chosen: Chosen) {
    const { head, batch, ranks, seq, negatives } = config;
    const { file, numbers, order } = chosen;
    const { length } = numbers;
    const isPairs = head.kind === 'embed';
    const isPreferences = isPreference(head.kind);
    this.#config = config;
    this.#chosen = chosen;
    const most = head.kind === 'embed' ? Math.min(seq, head.maxSeqLength ?? seq) : seq;
    this.#framer = framerOf(chosen, { most, isAlone: isPairs });
    // Pairs are compared with each other, so that all ranks need as many in each step.
    const isWhole = order !== 'in turn';
    if (isPairs && length < (isWhole ? batch : ranks)) {
      throw tooFew(config, chosen);
    }
    this.#batch = isPairs ? Math.min(batch, length - (length % ranks)) : batch;
    const found = numbers.reduce(
      (max, i) => Math.max(max, file.documentsOf(i).negatives.length),
      0,
    );
    this.#numNegatives = Math.min(negatives, found);
    checkKind(config, chosen);
    if (isPreferences) {
      checkVocabulary(config, { file: file.file, name: chosen.name });
      requireAnswers(file, numbers, { ...chosen, seq });
    }
    this.#labelIds = labelIds(config, chosen);
    this.numMicroSteps = numMicroSteps(config);
    const steps = length / this.#batch;
    this.numSteps = isPairs ? Math.floor(steps) : Math.ceil(steps);
    const cut = isPreferences ? numbers.filter((i) => isCut(file, i, seq)).length : 0;
    this.size = {
      tokens: numbers.reduce((sum, example) => sum + tokensOf(file, example), 0),
      ...{ documents: length, unit: 'examples', cut, pieces: cut },
      rows: isPairs ? this.numSteps * this.#batch : length,
    };
  }

  /** The number of the examples. */
  get count(): number {
    return this.#chosen.numbers.length;
  }

  /** Examples by their places in the order of the file. */
  async at(places: readonly number[]): Promise<readonly TaskExample[]> {
    const { numbers } = this.#chosen;
    return Promise.all(places.map((place) => this.#example(numbers[place]!, 0)));
  }

  /** The numbers of the examples of steps [first, end), each once. */
  numbersOf(first: number, end: number): readonly number[] {
    const found = new Set<number>();
    for (let step = first; step < end; step++) {
      for (const number of this.#numbersIn(step, { first: 0, end: this.#batch })) {
        found.add(number);
      }
      if (found.size === this.count) {
        break;
      }
    }
    return [...found].sort((a, b) => a - b);
  }

  /** An example by its number, as in the first epoch. */
  example(number: number): Promise<TaskExample> {
    return this.#example(number, 0);
  }

  async numTargets(step: number): Promise<number> {
    const { head } = this.#config;
    const numbers = this.#numbersIn(step, { first: 0, end: this.#batch });
    if (head.kind === 'rerank') {
      return numbers.reduce((sum, example) => sum + 1 + this.#numNegativesOf(example), 0);
    }
    const isSeveral =
      head.kind === 'classify' && head.problemType !== 'single_label_classification';
    return numbers.length * (isSeveral ? head.labels.length : 1);
  }

  numTokens(step: number): number {
    const { head, seq } = this.#config;
    const { file } = this.#chosen;
    const framer = this.#framer;
    const epoch = this.#epochOf(step);
    const numbers = this.#numbersIn(step, { first: 0, end: this.#batch });
    if (isPreference(head.kind)) {
      return numbers.reduce((sum, example) => sum + pairLength(file, example, seq), 0);
    }
    return numbers.reduce((sum, example) => {
      const documents = this.#documents(example, epoch);
      const others = [documents.second ?? [], documents.negatives].flat();
      const length = (document: number) => file.lengthOf(document, seq);
      const first = length(documents.first);
      const isPair = head.kind !== 'embed';
      const framed = others.map((document) =>
        isPair
          ? framer.framedLength(first, length(document))
          : framer.framedLength(length(document)),
      );
      const alone = isPair && others.length > 0 ? 0 : framer.framedLength(first);
      return framed.reduce((all, tokens) => all + tokens, sum + alone);
    }, 0);
  }

  originOf(step: number, row: number): RowOrigin {
    const examples = this.#numbersIn(step, { first: row, end: row + 1 });
    const numbers = examples.map((example) => this.#chosen.file.lineOf(example));
    return { part: 0, unit: 'document', numbers };
  }

  async microBatch(step: number, rank: number, microStep: number): Promise<ExampleBatch> {
    const own = rowsOf({ ...this.#config, batch: this.#batch, rank, microStep });
    const epoch = this.#epochOf(step);
    const numbers = this.#numbersIn(step, own);
    const examples = await Promise.all(numbers.map((example) => this.#example(example, epoch)));
    return { examples, firstRow: own.first };
  }

  /** The examples of an epoch, a multiple of a step's where all ranks need as many. */
  get #perEpoch(): number {
    return this.size.rows;
  }

  #epochOf(step: number): number {
    return Math.floor((step * this.#batch) / this.#perEpoch);
  }

  #numbersIn(step: number, { first, end }: { first: number; end: number }): number[] {
    const { order, numbers } = this.#chosen;
    const found: number[] = [];
    for (let row = first; row < end; row++) {
      const index = step * this.#batch + row;
      if (order === 'in turn' && index >= this.#perEpoch) {
        break; // an evaluation ends with the last example
      }
      const place = index % this.#perEpoch;
      found.push(numbers[order === 'shuffle' ? this.#shuffled(index)[place]! : place]!);
    }
    return found;
  }

  #shuffled(index: number): Uint32Array {
    const epoch = Math.floor(index / this.#perEpoch);
    if (epoch !== this.#epoch) {
      this.#order = permute(this.#chosen.numbers.length, this.#config.seed, epoch);
      this.#epoch = epoch;
    }
    return this.#order;
  }

  #numNegativesOf(example: number): number {
    return Math.min(this.#numNegatives, this.#chosen.file.documentsOf(example).negatives.length);
  }

  /** The documents of an example in an epoch, which has its own draw of negatives. */
  #documents(example: number, epoch: number): ExampleDocuments {
    const { file, numbers } = this.#chosen;
    const { negatives, ...own } = file.documentsOf(example);
    const chosen = drawn(negatives, this.#numNegativesOf(example), [example, epoch]);
    if (this.#config.head.kind !== 'embed') {
      return { ...own, negatives: chosen };
    }
    // All ranks need as many, so documents of other lines stand in for those that are missing. The
    // own line's answer the query, too; another one has more negatives, so that there is one.
    const next = splitMix32(example, epoch + 1);
    const line = file.lineOf(example);
    const others = Array.from({ length: this.#numNegatives - chosen.length }, () => {
      let i = Math.floor((next() / 2 ** 32) * numbers.length);
      while (file.lineOf(numbers[i]!) === line) {
        i = (i + 1) % numbers.length;
      }
      return file.documentsOf(numbers[i]!).second!;
    });
    return { ...own, negatives: [...chosen, ...others] };
  }

  async #example(example: number, epoch: number): Promise<TaskExample> {
    const { head, seq } = this.#config;
    const { file } = this.#chosen;
    if (isPreference(head.kind)) {
      return answerPair(file, example, { seq, reference: this.references.get(example) });
    }
    const framer = this.#framer;
    const documents = this.#documents(example, epoch);
    const read = (document: number) => file.read(document, seq);
    const first = await read(documents.first);
    const second = documents.second === undefined ? undefined : await read(documents.second);
    const negatives = await Promise.all(documents.negatives.map(read));
    const score = file.scoreOf(example);
    switch (head.kind) {
      case 'rerank':
        return {
          texts: [second!, ...negatives].map((text) => framer.pair(first, text)),
          labels: [score ?? 1, ...negatives.map(() => 0)],
        };
      case 'classify':
        return {
          texts: [second === undefined ? framer.text(first) : framer.pair(first, second)],
          labels: Array.from(file.labelsOf(example), (label) => this.#labelIds[label]!),
        };
      default:
        return {
          texts: [first, second!, ...negatives].map((text) => framer.text(text)),
          labels: score === undefined ? [] : [score],
        };
    }
  }
}

/** The mistake of fewer pairs than all ranks need for a step. */
function tooFew(
  { batch, ranks, validFraction }: ExampleConfig,
  { file, numbers, flag, name, order }: Chosen,
): UsageError {
  const { length } = numbers;
  const { count } = file.index;
  if (order === 'in turn') {
    return new UsageError(
      `${flag}: ${name} has ${length} examples for it, fewer than ${ranks} ranks. Give more of them, or fewer ranks.`,
    );
  }
  const most = length - (length % ranks);
  const fits = most > 0 ? `, or --batch ${most} at most` : '';
  const apart =
    validFraction === undefined
      ? `${length} examples`
      : `${count} examples, of which --valid-fraction ${validFraction} leaves ${length} to train on`;
  return new UsageError(
    `${flag}: ${name} has ${apart}, fewer than --batch ${batch}. Give more of them${fits}.`,
  );
}

/** @throws {UsageError} where no word has room in a row */
function framerOf(
  { file, numbers, flag, name }: Chosen,
  { most, isAlone }: { readonly most: number; readonly isAlone: boolean },
): Framer {
  const hasPairs = !isAlone && numbers.some((i) => file.documentsOf(i).second !== undefined);
  try {
    return new Framer(file.index.frame, { most, hasPairs });
  } catch (cause) {
    throw cause instanceof UsageError
      ? new UsageError(`${flag}: ${name}: ${cause.message}`, { cause })
      : cause;
  }
}

/** @throws {UsageError} for what would teach the model nothing, or what it does not tell */
function checkKind({ head, negatives }: ExampleConfig, { file, flag, name }: Chosen): void {
  if (head.kind === 'rerank' && file.index.kind === 'pairs' && negatives === 0) {
    throw new UsageError(
      '--negatives 0: a reranker that sees answers alone learns to say yes to all. Give 1 or more.',
    );
  }
  const isOne = head.kind === 'classify' && head.problemType === 'single_label_classification';
  if (isOne && file.index.kind === 'several labels') {
    throw new UsageError(
      `${flag}: ${name} has lists of labels, but the model gives one to each text. Write each label as a text or a number.`,
    );
  }
}

/** The tokens of an example's texts, without those around them. */
function tokensOf(file: ExampleFile, example: number): number {
  const { first, second, negatives } = file.documentsOf(example);
  return [first, second ?? [], negatives]
    .flat()
    .reduce((sum, document) => sum + file.lengthOf(document, Number.POSITIVE_INFINITY), 0);
}

/** So many of a list, others in each epoch. */
function drawn<T>(list: readonly T[], count: number, [example, epoch]: readonly [number, number]) {
  return count === list.length
    ? list
    : Array.from(permute(list.length, example, epoch).subarray(0, count), (i) => list[i]!);
}

/** @throws {UsageError} for a label that the model does not have */
function labelIds({ head }: ExampleConfig, { file, flag, name }: Chosen): number[] {
  if (head.kind !== 'classify') {
    return [];
  }
  return file.index.labels.map((label) => {
    const id = labelId(label, head.labels);
    if (id === undefined) {
      throw new UsageError(
        `${flag}: ${name} has the label "${label}", but the model's are ${head.labels.join(', ')}. Rename it, or leave its lines out.`,
      );
    }
    return id;
  });
}
