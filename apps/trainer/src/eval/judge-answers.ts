// Evaluates what a model answers, and not how likely the answers of the data are: each answer is
// made greedily, and compared with the one that the data has.

import { absoluteData } from '../data/data-parts.js';
import { COMPARED, sameCalls, TOOL_FORMATS, type ToolFormat } from '../data/tool-calls.js';
import { UsageError } from '../errors.js';
import { openTextModel, type TextModel } from '../generate/open-text-model.js';
import type { AnswerTask } from './answer-tasks.js';
import type { EvalFlags } from './eval-flags.js';
import { type Question, type Questions, readQuestions } from './read-questions.js';

/** An answer that is not the one of the data. */
export interface Miss {
  /** Where the question is, such as `chats.jsonl, line 3`. */
  readonly place: string;
  readonly wanted: string;
  readonly given: string;
}

export interface AnswerEvaluation {
  readonly task: AnswerTask;
  readonly documents: number;
  readonly answers: number;
  /** The families whose templates write calls as this model's does; undefined for answers. */
  readonly format?: string | undefined;
  /** The share of the answers that are right, by each way to compare them; see COMPARED. */
  readonly values: Readonly<Record<string, number>>;
  /** Those whose calls are others as JSON, or that are other answers. */
  readonly misses: readonly Miss[];
}

export interface JudgeOptions {
  /** The script that looks for a GPU. */
  readonly entry: string;
  readonly signal: AbortSignal;
  /** Called with the answers that are made, and of all. */
  readonly onAnswer: (done: number, total: number) => void;
}

/** A way to compare the answer of a model with that of the data. */
type Compare = (given: string, wanted: string) => boolean;

/** @throws {UsageError} for data without answers to compare, or a model that can't give any */
export async function judgeAnswers(
  flags: EvalFlags,
  task: AnswerTask,
  { entry, signal, onAnswer }: JudgeOptions,
): Promise<AnswerEvaluation> {
  const drawing = {
    temperature: 0,
    topK: undefined,
    topP: 1,
    minP: 0,
    repetitionPenalty: 1,
    seed: 0,
  } as const;
  const options = { entry, quantizeActivations: false };
  await using model = await openTextModel({ ...flags, ...drawing }, options);
  const found = await readQuestions(absoluteData(flags.data), model.tokenizer);
  return await compareAnswers(model, found, { ...flags, task, signal, onAnswer });
}

/** Has a model answer each question. */
export async function compareAnswers(
  model: Pick<TextModel, 'tokenizer' | 'continue'>,
  { documents, questions }: Questions,
  options: Omit<JudgeOptions, 'entry'> & Pick<EvalFlags, 'data'> & { readonly task: AnswerTask },
): Promise<AnswerEvaluation> {
  const { task, signal, onAnswer } = options;
  const format = task === 'tools' ? formatOf(questions, options) : undefined;
  const compared = format === undefined ? WHOLE : comparedBy(format);
  const right = new Map(Object.keys(compared).map((name) => [name, 0]));
  const misses: Miss[] = [];
  for (const [i, { place, prompt, wanted }] of questions.entries()) {
    const given = await answerTo(model, { place, prompt }, signal);
    for (const [name, isSame] of Object.entries(compared)) {
      right.set(name, right.get(name)! + Number(isSame(given, wanted)));
    }
    if (!(compared.json ?? compared.exact)(given, wanted)) {
      misses.push({ place, wanted, given });
    }
    onAnswer(i + 1, questions.length);
  }
  const answers = questions.length;
  const values = Object.fromEntries([...right].map(([name, count]) => [name, count / answers]));
  return { task, documents, answers, format: format?.name, values, misses };
}

interface Comparison {
  readonly exact: Compare;
  readonly json?: Compare;
  readonly name?: Compare;
}

const WHOLE: Comparison = { exact: (given, wanted) => given === wanted };

function comparedBy({ read }: ToolFormat): Comparison {
  const by =
    (isSame: (typeof COMPARED)[keyof typeof COMPARED]): Compare =>
    (given, wanted) =>
      sameCalls(read(given), read(wanted), isSame);
  return { exact: by(COMPARED.exact), json: by(COMPARED.json), name: by(COMPARED.name) };
}

/** The format in which the answers of the data hold calls, as the model's template writes them. */
function formatOf(questions: readonly Question[], { data }: Pick<EvalFlags, 'data'>): ToolFormat {
  const format = TOOL_FORMATS.find(({ read }) =>
    questions.some(({ wanted }) => read(wanted).some(({ name }) => name !== undefined)),
  );
  if (format === undefined) {
    const names = TOOL_FORMATS.map(({ name }) => name).join(', ');
    throw new UsageError(
      `--task tools: expected answers with "tool_calls" in ${data ?? 'the novel'}, and a model whose chat template writes them as those of ${names} do, got none that could be read, such as ${JSON.stringify(questions[0]!.wanted.slice(0, 80))}. Use --task exact to compare answers as they are.`,
    );
  }
  return format;
}

async function answerTo(
  model: Pick<TextModel, 'tokenizer' | 'continue'>,
  { place, prompt }: Pick<Question, 'place' | 'prompt'>,
  signal: AbortSignal,
): Promise<string> {
  const tokens: number[] = [];
  try {
    for await (const token of model.continue(prompt)) {
      signal.throwIfAborted();
      tokens.push(token);
    }
  } catch (cause) {
    throw cause instanceof UsageError
      ? new UsageError(`--data: ${place}: ${cause.message}`, { cause })
      : cause;
  }
  return model.tokenizer.decode(tokens).trim();
}
