// The command `replay`: computes one step of a run again, and tells of each row what it did.

import { basename } from 'node:path';
import { replayPage } from '../again/replay-page.js';
import { type Replayed, type ReplayedRow, replayStep } from '../again/replay-step.js';
import { writeText } from '../files/write-file.js';
import { flag, needed } from '../flags/flag.js';
import { data, file, onOff, whole } from '../flags/flag-kinds.js';
import { printable } from '../output/printable.js';
import { Terminal } from '../output/terminal.js';
import { comparing } from './comparing.js';
import { defineCommand, QUIET } from './define-command.js';
import { writeOut } from './new-directory.js';

/** The rows of the table; --json has all. */
const MOST_ROWS = 16;
/** The characters of a text in the table. */
const MOST_CHARS = 60;

/** The command `replay`. */
export const replay = defineCommand({
  name: 'replay',
  description:
    'Computes one step of a run again, from the nearest save before it or from its beginning, and with --rows each row of the step alone, with the weights that the step began with: its loss, the norm of what it adds to the gradients, that of each layer, the largest activations, and its text. The largest norm comes first.',
  flags: {
    run: needed(file, ['<RUN>', 'a directory that --out of train has named']),
    step: needed(whole(1), ['--step <N>', 'the step, as its line in metrics.jsonl has it']),
    rows: flag(onOff, false, ['--rows', 'each row of it alone']),
    data: flag(data, undefined, [
      '--data <FILE|DIR|hf:ORG/NAME,...>',
      'where the data is now (default: where it was, or else the cache); its hash is compared',
    ]),
    page: flag(file, undefined, [
      '--page <FILE>',
      'all rows as a page that opens from disk, too; it brings --rows with it',
    ]),
    json: flag(onOff, false, ['--json', 'all of it, as JSON']),
    quiet: QUIET,
  },
  examples: [
    {
      line: 'replay runs/first --step 371 --rows',
      says: 'which row of a batch made the loss jump at step 371',
    },
  ],
  run: (flags, { out, err, env, entry, listen }) =>
    comparing(async () => {
      const { signal } = listen();
      const { page } = flags;
      const isQuiet = flags.quiet || flags.json;
      const terminal = new Terminal({ out, err, env, steps: 0, isQuiet });
      try {
        const found = await replayStep(flags.run, {
          ...{ entry, env, signal, step: flags.step, data: flags.data },
          withRows: flags.rows || page !== undefined,
          onNote: (note) => terminal.note(note),
          onTokenized: terminal.tokenizing.bind(terminal),
          onProgress: (done, total) => terminal.progress('steps', done, total),
        });
        terminal.close();
        out.write(flags.json ? `${JSON.stringify(found)}\n` : textOf(found));
        if (page !== undefined) {
          const html = replayPage(found, `Step ${flags.step} of ${flags.run}`);
          await writeOut(page, async (path) => writeText(path, html));
        }
        return found.difference === undefined ? 0 : 1;
      } finally {
        terminal.close();
      }
    }),
});

function textOf({ metrics, difference, rows }: Replayed): string {
  const { step, loss, gradNorm } = metrics;
  const isEqual =
    difference === undefined
      ? 'as in the record, to the bit'
      : `not as in the record: ${difference}`;
  const lines = [`step ${step}: loss ${loss}, gradient norm ${gradNorm}; ${isEqual}`];
  const [first] = rows;
  if (first !== undefined) {
    lines.push('', ...rowTable(rows), '', ...layerTable(first));
  }
  return lines.map((line) => `${line}\n`).join('');
}

function rowTable(rows: readonly ReplayedRow[]): string[] {
  const first = rows.slice(0, MOST_ROWS);
  const from = first.map(({ places }) => printable(placeOf(places)));
  const width = 2 + Math.max(...from.map((place) => place.length));
  const head = `${'row'.padStart(5)}${'grad norm'.padStart(12)}${'loss'.padStart(10)}${'targets'.padStart(9)}  ${'most in'.padEnd(10)}${'largest activation'.padEnd(22)}${'from'.padEnd(width)}text`;
  const shown = first.map((row, i) => {
    const [layer = ''] = largest(row.layers) ?? [];
    const [where = '', value = 0] = largest(row.activations) ?? [];
    const numbers = [
      String(row.row).padStart(5),
      row.gradNorm.toPrecision(4).padStart(12),
      row.loss.toFixed(4).padStart(10),
      String(row.targets).padStart(9),
    ].join('');
    const activation = `${value.toPrecision(4)} in ${where}`.padEnd(22);
    return `${numbers}  ${layer.padEnd(10)}${activation}${from[i]!.padEnd(width)}${excerpt(row.texts)}`;
  });
  const rest = rows.length - shown.length;
  return [head, ...shown, ...(rest > 0 ? [`and ${rest} more; --json has all`] : [])];
}

/** The first and the last of a row's documents, by the names of their files. */
function placeOf(places: readonly string[]): string {
  const names = [places[0]!, places.at(-1)!].map((place) => basename(place));
  return places.length === 1 ? names[0]! : `${names.join(' .. ')} (${places.length})`;
}

/** Each layer of a row. */
function layerTable({ row, layers, activations }: ReplayedRow): string[] {
  const names = [...new Set([...Object.keys(layers), ...Object.keys(activations)])];
  const width = Math.max(12, ...names.map((name) => name.length + 2));
  const cell = (value: number | undefined) => (value?.toPrecision(4) ?? '').padStart(12);
  return [
    `${`row ${row}`.padEnd(width)}${'grad norm'.padStart(12)}${'activation'.padStart(12)}`,
    ...names.map((name) => `${name.padEnd(width)}${cell(layers[name])}${cell(activations[name])}`),
  ];
}

function largest(values: Readonly<Record<string, number>>): [string, number] | undefined {
  return Object.entries(values).reduce<[string, number] | undefined>(
    (most, entry) => (most === undefined || !(entry[1] <= most[1]) ? entry : most),
    undefined,
  );
}

function excerpt(texts: readonly string[]): string {
  const text = printable(texts.join(' | ').replace(/\s+/g, ' ').trim());
  return text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}...` : text;
}
