// What the model that a run trains answers to questions of --valid, in the middle of the run. Each
// rank answers its share: alone where it has the whole model; where each has a shard they call the
// model at the same times, each for a question of its own.

import { setImmediate as nextTurn } from 'node:timers/promises';
import type { ProcessGroup } from '@shardweave/collectives';
import { generate, KeyValueCache, type LogitsAfter, nextLogits } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { type Question, readQuestions } from '../../data/read-questions.js';
import { loadTokenizer, stopTokens, type Tokenizer } from '../../data/tokenizer.js';
import { UsageError } from '../../errors.js';
import { AnswerBoard } from '../../figures/answer-figures.js';
import type { Figures } from '../../figures/figures.js';
import type { RunConfig } from '../../run-config.js';
import { MOST_ANSWER_TOKENS } from '../../task/answer-tasks.js';
import { languageConfig, longestTextRow } from '../../task/text-config.js';
import type { TextModel } from '../strategies/strategy.js';
import { sumOverRanks } from '../strategies/sum-over-ranks.js';

/** What is asked at each evaluation of a run. */
export interface Asked {
  readonly questions: readonly Question[];
  readonly tokenizer: Tokenizer;
  /** The most tokens of an answer. */
  readonly maxTokens: number;
  /** The most tokens of a question and its answer. */
  readonly context: number;
  readonly newBoard: () => AnswerBoard;
}

/** An answer may be longer than any of the data by so many tokens before it is cut off. */
const SPARE_TOKENS = 16;

/**
 * Reads the first questions of --valid; undefined where a run has no --eval-task.
 * @throws {UsageError} for data without answers, without calls, and for a question that is too long
 */
export async function readAsked(config: RunConfig): Promise<Asked | undefined> {
  const { evalTask: task, evalAnswers: most, valid, tokenizer: name, model } = config;
  if (task === undefined) {
    return undefined;
  }
  const directory = model.kind === 'directory' ? model.path : undefined;
  const tokenizer = await loadTokenizer(name, directory);
  const { questions } = await readQuestions(valid, tokenizer, { flag: '--valid', most });
  const newBoard = () => new AnswerBoard(questions, { task, flag: '--eval-task', data: valid });
  newBoard(); // which refuses what can't be compared before anything is trained
  const positions = longestTextRow(languageConfig(config.modelConfig));
  const long = questions.find(({ prompt }) => prompt.length > positions);
  if (long !== undefined) {
    throw new UsageError(
      `--eval-task ${task}: ${long.place}: the question has ${long.prompt.length} tokens, and the model has ${positions} positions. Shorten it, or leave it out of --valid.`,
    );
  }
  const longest = (of: (question: Question) => number) => Math.max(...questions.map(of));
  const wanted = longest((question) => tokenizer.encode(question.wanted).length);
  const maxTokens = Math.min(MOST_ANSWER_TOKENS, wanted + SPARE_TOKENS);
  const context = Math.min(positions, longest(({ prompt }) => prompt.length) + maxTokens);
  return { questions, tokenizer, maxTokens, context, newBoard };
}

export interface AnswersOptions {
  readonly asked: Asked;
  readonly device: Device;
  /** The model in evaluation. */
  readonly text: TextModel;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Whether it is given up, with the same answer on all ranks; asked before each question. */
  readonly isGivenUp?: (() => Promise<boolean>) | undefined;
  /** Ends it with its reason, which is looked for behind each token. */
  readonly signal?: AbortSignal | undefined;
  /** Called with the number of questions that are answered, and of all. */
  readonly onAnswer?: ((done: number, total: number) => void) | undefined;
}

/**
 * The shares of answers that are those of the data. An answer depends on nothing but its question
 * and the weights, so that the shares are those of any number of ranks. Collective.
 * @returns undefined where it was given up
 */
export async function answerFigures({
  asked,
  device,
  text,
  group,
  isGivenUp,
  signal,
  onAnswer,
}: AnswersOptions): Promise<Figures | undefined> {
  const { questions, newBoard } = asked;
  const { rank, worldSize } = group;
  const board = newBoard();
  const model = inTurns(text, device);
  using cache = new KeyValueCache(device, { capacity: asked.context });
  for (let first = 0; first < questions.length; first += worldSize) {
    if ((await isGivenUp?.()) === true) {
      return undefined;
    }
    const question = questions[first + rank];
    if (question !== undefined) {
      cache.truncate(0); // what it holds of another question may be rounded in another way
      board.add(
        question,
        await answerTo(question, nextLogits(model, { cache }), { ...asked, signal }),
      );
    }
    await model.followOthers();
    onAnswer?.(Math.min(first + worldSize, questions.length), questions.length);
  }
  return board.figures(group);
}

async function answerTo(
  { prompt }: Question,
  logitsAfter: LogitsAfter,
  { tokenizer, maxTokens, context, signal }: Asked & Pick<AnswersOptions, 'signal'>,
): Promise<string> {
  const stop = stopTokens(tokenizer);
  const tokens: number[] = [];
  for await (const token of generate(logitsAfter, prompt, {
    ...{ temperature: 0, maxTokens, context, stop },
  })) {
    tokens.push(token);
    await nextTurn(); // a device that computes in this thread lets no wish to end come in
    signal?.throwIfAborted();
  }
  return tokenizer.decode(tokens).trim();
}

/** A model that ranks call as often as each other where they have to. */
interface TurnModel extends Pick<TextModel['model'], 'call' | 'device'> {
  /** Calls the model along with the ranks that still answer, until none does. Collective. */
  followOthers(): Promise<void>;
}

/** Each call of a sharded model gathers, so that a rank with nothing to ask calls it, too. */
function inTurns({ model, group }: TextModel, device: Device): TurnModel {
  const isAnyCalling = async (isCalling: boolean) =>
    group !== undefined && (await sumOverRanks(Number(isCalling), group, 'answers')) > 0;
  return {
    device,
    call: async (...args) => {
      await isAnyCalling(true);
      return model.call(...args);
    },
    followOthers: async () => {
      while (await isAnyCalling(false)) {
        await device.noGrad(() =>
          device.scope(async () => {
            const ids = device.tensor(Uint32Array.of(0), [1, 1], { tag: 'staging' });
            await model.call(ids, { onlyLast: true });
          }),
        );
      }
    },
  };
}
