// The command `report`: draws several runs on one page.

import { join } from 'node:path';
import { writeText } from '../files/write-file.js';
import { flag, needed } from '../flags/flag.js';
import { file, files } from '../flags/flag-kinds.js';
import { reportOf } from '../output/report.js';
import { defineWriter, QUIET } from './define-command.js';
import { writeOut } from './new-directory.js';

/** The command `report`. */
export const report = defineWriter({
  name: 'report',
  description: 'Lays runs over each other on one page that opens from disk and asks nobody.',
  flags: {
    runs: needed(files, ['<RUN...>', 'directories that --out of train has named']),
    out: flag(file, undefined, [
      '--out <FILE>',
      'the page (default: report.html, of a single run in its own directory)',
    ]),
    quiet: QUIET,
  },
  examples: [
    {
      line: 'report runs/first runs/second --out compared.html',
      says: 'losses, rates, memory and communication of both in each plot',
    },
  ],
  write: async ({ runs, out: asked }) => {
    const out = asked ?? (runs.length === 1 ? join(runs[0]!, 'report.html') : 'report.html');
    const html = await reportOf(runs);
    await writeOut(out, async (path) => writeText(path, html));
    return [`${out}: ${runs.length} run${runs.length === 1 ? '' : 's'}`];
  },
});
