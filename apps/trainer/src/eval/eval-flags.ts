// The flags of the command `eval`: an interface that others script against.

import { UsageError } from '../errors.js';
import { flag, keyOf, type ValuesOf } from '../flags/flag.js';
import { data, file, oneOf, onOff, whole } from '../flags/flag-kinds.js';
import { DEFAULT_SEQ_AT_MOST, TASKS } from '../flags/train-flags.js';
import { MODEL, PLACE } from '../generate/generate-flags.js';
import { ANSWER_TASKS, isAnswerTask, MOST_ANSWER_TOKENS } from '../task/answer-tasks.js';

export const EVAL = {
  ...MODEL,
  data: flag(data, undefined, [
    '--data <FILE|DIR|hf:ORG/NAME,...>',
    'a text in UTF-8, or documents, as train takes them (default: the novel Moby Dick)',
  ]),
  task: flag(oneOf([...TASKS, ...ANSWER_TASKS]), undefined, [
    '--task <lm|embed|classify|rerank|dpo|orpo|tools|exact>',
    "as train takes it (default: what the model's files say); tools, exact: answers that the model makes are compared with those of the data, by the tools that they call or as they are",
  ]),
  maxTokens: flag(whole(1), MOST_ANSWER_TOKENS, [
    '--max-tokens <N>',
    'of an answer, with tools and exact',
  ]),
  trainOnPrompt: flag(onOff, false, [
    '--train-on-prompt',
    'count prompts and all roles, not the answers alone',
  ]),
  seq: flag(whole(1), undefined, [
    '--seq <T>',
    `tokens of a row, and of a task's text (default: the model's positions, at most ${DEFAULT_SEQ_AT_MOST})`,
  ]),
  batch: flag(whole(1), 16, ['--batch <B>', 'rows or examples at once']),
  cache: flag(file, undefined, [
    '--cache <DIR>',
    'where tokens of data are kept, as train takes it',
  ]),
  json: flag(onOff, false, ['--json', 'one object, for programs']),
  ...PLACE,
};

export type EvalFlags = ValuesOf<typeof EVAL>;

/** What says how data are cut into rows, where a model answers each question by itself. */
const OF_ROWS = ['trainOnPrompt', 'seq', 'batch'] as const;
/** What says how long an answer may be. */
const OF_ANSWERS = ['maxTokens'] as const;

/** @throws {UsageError} for a flag that is given and does nothing in the task */
export function refuseIdleIn(flags: EvalFlags): void {
  const { task } = flags;
  const isAnswering = isAnswerTask(task);
  const idle: readonly (keyof EvalFlags)[] = isAnswering ? OF_ROWS : OF_ANSWERS;
  const name = idle.find((key) => flags[key] !== EVAL[key].value);
  if (name !== undefined) {
    const needs = isAnswering ? 'a loss on data' : `--task ${ANSWER_TASKS.join(' or ')}`;
    const got = task === undefined ? 'which is not given' : `got --task ${task}`;
    throw new UsageError(
      `--${keyOf(name)} is for ${needs}, ${got}. Leave it out, or give another --task.`,
    );
  }
}
