// The tasks of eval that compare answers which the model makes.

export const ANSWER_TASKS = ['tools', 'exact'] as const;
export type AnswerTask = (typeof ANSWER_TASKS)[number];

export function isAnswerTask(task: string | undefined): task is AnswerTask {
  return ANSWER_TASKS.some((name) => name === task);
}
