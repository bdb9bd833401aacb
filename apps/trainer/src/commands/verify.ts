// The command `verify`: computes steps of a run again, and tells whether they are as its record
// says.

import { verifyRun } from '../again/verify-run.js';
import { flag, needed } from '../flags/flag.js';
import { data, file, stepRange, whole } from '../flags/flag-kinds.js';
import { Terminal } from '../output/terminal.js';
import { comparing } from './comparing.js';
import { defineCommand, QUIET } from './define-command.js';

/** The command `verify`. */
export const verify = defineCommand({
  name: 'verify',
  description:
    "Computes steps of a run again from its nearest save, or its beginning, and compares losses, gradient norms and hashes with the run's record, to the bit. It ends with 0 where all are equal, and with 1 where they are not.",
  flags: {
    run: needed(file, ['<RUN>', 'a directory that --out of train has named']),
    steps: flag(stepRange, undefined, [
      '--steps <A..B>',
      'these steps, the last one with them (default: all in the record)',
    ]),
    data: flag(data, undefined, [
      '--data <FILE|DIR|hf:ORG/NAME,...>',
      'where the data is now (default: where it was, or else the cache); its hash is compared',
    ]),
    ranks: flag(whole(1), undefined, [
      '--ranks <N>',
      'on this many ranks, of a run with --gradient-groups (default: as many as it had)',
    ]),
    quiet: QUIET,
  },
  examples: [
    { line: 'verify runs/first', says: 'every step of a run' },
    {
      line: 'verify runs/first --steps 100..110',
      says: 'steps 100 to 110, from the newest save before step 100',
    },
  ],
  run: (flags, { out, err, env, entry, listen }) =>
    comparing(async () => {
      const { signal } = listen();
      const { steps, ranks, quiet: isQuiet } = flags;
      const terminal = new Terminal({ out, err, env, steps: 0, isQuiet });
      try {
        const { isEqual, text } = await verifyRun(flags.run, {
          ...{ entry, env, signal, steps, ranks, data: flags.data },
          onNote: (note) => terminal.note(note),
          onTokenized: terminal.tokenizing.bind(terminal),
          onProgress: (done, total) => terminal.progress('steps', done, total),
        });
        terminal.close();
        if (!isEqual || !isQuiet) {
          out.write(`${text}\n`);
        }
        return isEqual ? 0 : 1;
      } finally {
        terminal.close();
      }
    }),
});
