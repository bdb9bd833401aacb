// How many answers of a model are those of the data, by each way to compare them.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Question } from '../data/read-questions.js';
import { COMPARED, sameCalls, TOOL_FORMATS, type ToolFormat } from '../data/tool-calls.js';
import { UsageError } from '../errors.js';
import type { AnswerTask } from '../task/answer-tasks.js';
import type { Figures } from './figures.js';
import { summed } from './task-figures.js';

/** A way to compare the answer of a model with that of the data. */
type Compare = (given: string, wanted: string) => boolean;

export interface AnswerBoardOptions {
  readonly task: AnswerTask;
  /** The flag that names the task. */
  readonly flag: string;
  /** The data that the questions are of, for people. */
  readonly data: string | undefined;
}

/** Compares answers with those of the data. */
export class AnswerBoard {
  /** The families whose templates write calls as this model's does; undefined for answers. */
  readonly format: string | undefined;
  readonly #compared: readonly (readonly [name: string, isSame: Compare])[];
  readonly #all: number;
  #right: Float32Array<ArrayBuffer>;

  /** @throws {UsageError} for --task tools, where no answer of the data has a call */
  constructor(questions: readonly Question[], options: AnswerBoardOptions) {
    const format = options.task === 'tools' ? formatOf(questions, options) : undefined;
    this.format = format?.name;
    this.#compared = format === undefined ? [['exact', isSameText]] : comparedBy(format);
    this.#all = questions.length;
    this.#right = new Float32Array(this.#compared.length);
  }

  /** Returns whether the answer is right: the same calls as JSON, or the same text. */
  add({ wanted }: Pick<Question, 'wanted'>, given: string): boolean {
    const found = this.#compared.map(([, isSame]) => isSame(given, wanted));
    for (const [i, isRight] of found.entries()) {
      this.#right[i]! += Number(isRight);
    }
    return found[this.#compared.findIndex(([name]) => name === 'json')] ?? found[0]!;
  }

  /** The share of all answers that are right, by the name of each comparison; see COMPARED. */
  values(): Readonly<Record<string, number>> {
    return Object.fromEntries(
      this.#compared.map(([name], i) => [name, this.#right[i]! / this.#all]),
    );
  }

  /** The same for answers of which each rank has added its own. Once; collective. */
  async figures(group: ProcessGroup): Promise<Figures> {
    this.#right = await summed(this.#right, group);
    return { values: this.values() };
  }
}

const isSameText: Compare = (given, wanted) => given === wanted;

function comparedBy({ read }: ToolFormat): [name: string, isSame: Compare][] {
  return Object.entries(COMPARED).map(([name, isSame]) => [
    name,
    (given, wanted) => sameCalls(read(given), read(wanted), isSame),
  ]);
}

/** The format in which the answers of the data hold calls, as the model's template writes them. */
function formatOf(
  questions: readonly Question[],
  { flag, data }: Pick<AnswerBoardOptions, 'flag' | 'data'>,
): ToolFormat {
  const format = TOOL_FORMATS.find(({ read }) =>
    questions.some(({ wanted }) => read(wanted).some(({ name }) => name !== undefined)),
  );
  if (format === undefined) {
    const names = TOOL_FORMATS.map(({ name }) => name).join(', ');
    throw new UsageError(
      `${flag} tools: expected answers with "tool_calls" in ${data}, and a model whose chat template writes them as those of ${names} do, got none that could be read, such as ${JSON.stringify(questions[0]!.wanted.slice(0, 80))}. Use ${flag} exact to compare answers as they are.`,
    );
  }
  return format;
}
