// The tasks that compare answers which the model makes, of eval and of --eval-task.

export const ANSWER_TASKS = ['tools', 'exact'] as const;
export type AnswerTask = (typeof ANSWER_TASKS)[number];

/** The most tokens of an answer, unless somebody says another number. */
export const MOST_ANSWER_TOKENS = 256;

export function isAnswerTask(task: string | undefined): task is AnswerTask {
  return ANSWER_TASKS.some((name) => name === task);
}
