// The command `eval`: tells how well a model predicts a text.

import { EVAL } from '../eval/eval-flags.js';
import { type Evaluation, evaluateModel } from '../eval/evaluate-model.js';
import { Terminal } from '../output/terminal.js';
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
      line: 'eval --model DIR --adapter runs/tuned/adapter --data chats.jsonl --json',
      says: 'adapters on conversations, whose answers count, for programs',
    },
  ],
  run: async (flags, { out, err, env, entry, listen }) => {
    const { signal } = listen();
    const terminal = new Terminal({ out, err, env, steps: 0, isQuiet: flags.json });
    let found: Evaluation;
    try {
      found = await evaluateModel(flags, {
        entry,
        signal,
        onTokenized: terminal.tokenizing.bind(terminal),
        onBatch: (done, total) => terminal.progress('batches', done, total),
      });
    } finally {
      terminal.close();
    }
    out.write(flags.json ? `${JSON.stringify(found)}\n` : linesOf(found));
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
