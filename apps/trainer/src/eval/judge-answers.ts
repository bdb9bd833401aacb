// Evaluates what a model answers, and not how likely the answers of the data are: each answer is
// made greedily, and compared with the one that the data has.

import { absoluteData } from '../data/data-parts.js';
import { type Question, type Questions, readQuestions } from '../data/read-questions.js';
import { UsageError } from '../errors.js';
import { AnswerBoard } from '../figures/answer-figures.js';
import { openTextModel, type TextModel } from '../generate/open-text-model.js';
import type { AnswerTask } from '../task/answer-tasks.js';
import type { EvalFlags } from './eval-flags.js';

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
  const found = await readQuestions(absoluteData(flags.data), model.tokenizer, { flag: '--data' });
  return await compareAnswers(model, found, { ...flags, task, signal, onAnswer });
}

/** Has a model answer each question. */
export async function compareAnswers(
  model: Pick<TextModel, 'tokenizer' | 'continue'>,
  { documents, questions }: Questions,
  options: Omit<JudgeOptions, 'entry'> & Pick<EvalFlags, 'data'> & { readonly task: AnswerTask },
): Promise<AnswerEvaluation> {
  const { task, data, signal, onAnswer } = options;
  const board = new AnswerBoard(questions, { task, flag: '--task', data });
  const misses: Miss[] = [];
  for (const [i, { place, prompt, wanted }] of questions.entries()) {
    const given = await answerTo(model, { place, prompt }, signal);
    if (!board.add({ wanted }, given)) {
      misses.push({ place, wanted, given });
    }
    onAnswer(i + 1, questions.length);
  }
  const { format } = board;
  return { task, documents, answers: questions.length, format, values: board.values(), misses };
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
