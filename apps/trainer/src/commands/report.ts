// The command `report`: draws several runs on one page.

import { Command } from 'commander';
import { writeText } from '../files/write-file.js';
import { reportOf } from '../output/report.js';
import { defineWriter } from './define-command.js';
import { writeOut } from './new-directory.js';

interface ReportFlags {
  readonly runs: readonly string[];
  readonly out: string;
  readonly quiet: boolean;
}

/** The command `report`. */
export const report = defineWriter<ReportFlags>({
  options: reportOptions,
  examples: [
    {
      line: 'report runs/first runs/second --out compared.html',
      says: 'losses, rates, memory and communication of both in each plot',
    },
  ],
  read: (given, runs) => ({
    runs,
    out: given.out as string,
    quiet: given.quiet === true,
  }),
  write: async ({ runs, out }) => {
    const html = reportOf(runs);
    await writeOut(out, async (path) => writeText(path, html));
    return [`${out}: ${runs.length} run${runs.length === 1 ? '' : 's'}`];
  },
});

function reportOptions(): Command {
  return new Command('shardweave report')
    .description('Lays runs over each other on one page that opens from disk and asks nobody.')
    .argument('<RUN...>', 'directories that --out of train has named')
    .option('--out <FILE>', 'the page', 'report.html');
}
