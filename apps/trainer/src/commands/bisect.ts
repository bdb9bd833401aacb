// The command `bisect`: finds the first step in which two runs part, and what differed.

import { bisectRuns } from '../again/bisect-runs.js';
import { needed } from '../flags/flag.js';
import { file } from '../flags/flag-kinds.js';
import { printable } from '../output/printable.js';
import { Terminal } from '../output/terminal.js';
import { comparing } from './comparing.js';
import { defineCommand, QUIET } from './define-command.js';

/** The command `bisect`. */
export const bisect = defineCommand({
  name: 'bisect',
  description:
    'Finds the first step in which the records of two runs part, and tells what differed: a flag, the numeric class of the devices, the data, or a row of it. It ends with 0 where all steps that both have are equal, and with 1 where they are not.',
  flags: {
    run: needed(file, ['<RUN>', 'a directory that --out of train has named']),
    other: needed(file, ['<OTHER>', 'another one']),
    quiet: QUIET,
  },
  examples: [
    { line: 'bisect runs/first runs/second', says: 'where two runs of one command part, and why' },
  ],
  run: (flags, { out, err, env, entry, listen }) =>
    comparing(async () => {
      const { signal } = listen();
      const { run: one, other, quiet: isQuiet } = flags;
      const terminal = new Terminal({ out, err, env, steps: 0, isQuiet });
      try {
        const { step, lines } = await bisectRuns(
          { one, other },
          {
            ...{ entry, env, signal },
            onNote: (note) => terminal.note(note),
            onTokenized: terminal.tokenizing.bind(terminal),
          },
        );
        terminal.close();
        if (!isQuiet) {
          out.write(lines.map((line) => `${printable(line)}\n`).join(''));
        }
        return step === undefined ? 0 : 1;
      } finally {
        terminal.close();
      }
    }),
});
