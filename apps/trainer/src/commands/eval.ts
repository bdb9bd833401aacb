// The command `eval`: tells how well a model predicts a text.

import { EVAL, refuseIdleIn } from '../eval/eval-flags.js';
import { type Evaluation, evaluateModel, type TaskEvaluation } from '../eval/evaluate-model.js';
import { type AnswerEvaluation, judgeAnswers } from '../eval/judge-answers.js';
import type { ClassFigures } from '../figures/figures.js';
import { printable } from '../output/printable.js';
import { Terminal } from '../output/terminal.js';
import { isAnswerTask } from '../task/answer-tasks.js';
import { defineCommand } from './define-command.js';

/** The command `eval`. */
export const evalCommand = defineCommand({
  name: 'eval',
  description:
    'Tells the loss, perplexity and bits per byte of a model on a text. Each target of the data counts once; the first token of a text or a document is none. A row begins without what stood before it.',
  flags: EVAL,
  model: 'weights',
  examples: [
    { line: 'eval --model runs/first --data my.txt', says: 'a trained model on a text of yours' },
    {
      line: 'eval --model DIR --adapter runs/tuned/adapter --data calls.jsonl --task tools',
      says: 'how often the model calls the tools that the data call, and the first misses',
    },
    {
      line: 'eval --model DIR --adapter runs/tuned/adapter --data chats.jsonl --json',
      says: 'adapters on conversations, whose answers count, for programs',
    },
  ],
  run: async (flags, { out, err, env, entry, listen }) => {
    refuseIdleIn(flags);
    const { signal } = listen();
    const terminal = new Terminal({ out, err, env, steps: 0, isQuiet: flags.json });
    const { task } = flags;
    let [found, lines]: [object, string] = [{}, ''];
    try {
      if (isAnswerTask(task)) {
        const onAnswer = (done: number, total: number) => terminal.progress('answers', done, total);
        const judged = await judgeAnswers(flags, task, { entry, signal, onAnswer });
        [found, lines] = [judged, answerLines(judged)];
      } else {
        const evaluated = await evaluateModel(
          { ...flags, task },
          {
            entry,
            signal,
            onNote: terminal.warn.bind(terminal),
            onTokenized: terminal.tokenizing.bind(terminal),
            onBatch: (done, total) => terminal.progress('batches', done, total),
          },
        );
        const isTask = 'task' in evaluated;
        [found, lines] = [evaluated, isTask ? taskLines(evaluated) : linesOf(evaluated)];
      }
    } finally {
      terminal.close();
    }
    out.write(flags.json ? `${JSON.stringify(found)}\n` : lines);
    return 0;
  },
});

function linesOf(found: Evaluation): string {
  const { loss, perplexity, bitsPerByte, bytes, targets, seq } = found;
  const rows = [
    ['targets', `${targets} in rows of ${seq}`],
    ['loss', loss.toFixed(6)],
    ['perplexity', perplexity.toFixed(4)],
    [
      'bits/byte',
      bitsPerByte === undefined ? undefined : `${bitsPerByte.toFixed(6)} of ${bytes} bytes`,
    ],
  ] as const;
  return rows
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name.padEnd(11)}${value}\n`)
    .join('');
}

/** How many answers are right, and the first that are not. */
function answerLines(found: AnswerEvaluation): string {
  const { task, documents, answers, format, values, misses } = found;
  const calls = format === undefined ? '' : `, calls as ${format} have them`;
  const rows = [
    ['task', `${task}, ${answers} answers of ${documents} documents${calls}`],
    ...Object.entries(values).map(([name, share]) => [name, share.toFixed(4)]),
  ];
  const lines = rows.map(([name, value]) => `${name!.padEnd(11)}${value}`);
  for (const { place, wanted, given } of misses.slice(0, MOST_MISSES)) {
    lines.push('', place, `  wanted   ${shown(wanted)}`, `  given    ${shown(given)}`);
  }
  const rest = misses.length - MOST_MISSES;
  return [...lines, ...(rest > 0 ? ['', `and ${rest} more; --json has all`] : [])]
    .map((line) => `${line}\n`)
    .join('');
}

/** The misses that a terminal has room for. */
const MOST_MISSES = 5;
/** The most characters of an answer in it. */
const MOST_CHARS = 300;

/** An answer in one line. */
function shown(answer: string): string {
  const text = printable(answer.replaceAll(/\s*\n\s*/g, ' '));
  return text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}...` : text;
}

/** The figures of a task, and those of a classifier's classes as a table. */
function taskLines(found: TaskEvaluation): string {
  const { task, examples, loss, values, compared, classes, confusion } = found;
  const rows = [
    ['task', `${task}, ${examples} examples`],
    ...(compared === undefined
      ? []
      : [
          ['search', `${compared.queries} queries, each among all ${compared.documents} documents`],
        ]),
    ['loss', loss.toFixed(6)],
    ...Object.entries(values).map(([name, value]) => [name, value.toFixed(4)]),
  ];
  const lines = rows.map(([name, value]) => `${name!.padEnd(11)}${value}`);
  if (classes !== undefined) {
    lines.push('', ...classTable(classes));
  }
  if (confusion !== undefined && confusion.length <= MOST_COLUMNS) {
    lines.push('', ...confusionTable(classes!, confusion));
  }
  return lines.map((line) => `${line}\n`).join('');
}

/** The most labels whose confusion fits a terminal; --json has those of all. */
const MOST_COLUMNS = 8;

function classTable(classes: readonly ClassFigures[]): string[] {
  const width = Math.max(5, ...classes.map(({ label }) => label.length)) + 2;
  const head = ['precision', 'recall', 'f1', 'texts'].map((name) => name.padStart(10)).join('');
  const rows = classes.map(({ label, precision, recall, f1, support }) => {
    const parts = [precision, recall, f1].map((value) => value.toFixed(4).padStart(10));
    return `${label.padEnd(width)}${parts.join('')}${String(support).padStart(10)}`;
  });
  return [`${'label'.padEnd(width)}${head}`, ...rows];
}

function confusionTable(
  classes: readonly ClassFigures[],
  counts: readonly (readonly number[])[],
): string[] {
  const names = classes.map(({ label }) => label);
  const width = Math.max(15, ...names.map((name) => name.length + 2));
  const column = Math.max(8, ...names.map((name) => name.length + 2));
  const line = (name: string, cells: readonly (string | number)[]) =>
    `${name.padEnd(width)}${cells.map((cell) => String(cell).padStart(column)).join('')}`;
  return [line('label \\ given', names), ...counts.map((row, i) => line(names[i]!, row))];
}
