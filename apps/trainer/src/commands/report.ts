// The command `report`: draws several runs on one page.

import { Command } from 'commander';
import { writeText } from '../files/write-file.js';
import { reportOf } from '../output/report.js';
import { defineCommand } from './define-command.js';
import { writeOut } from './new-directory.js';

interface ReportFlags {
  readonly runs: readonly string[];
  readonly out: string;
  readonly quiet: boolean;
}

/** The command `report`. */
export const report = defineCommand<ReportFlags>({
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
  run: async ({ runs, out, quiet }, context) => {
    const html = reportOf(runs);
    await writeOut(out, async (path) => writeText(path, html));
    if (!quiet) {
      context.out.write(`${out}: ${runs.length} run${runs.length === 1 ? '' : 's'}\n`);
    }
    return 0;
  },
});

function reportOptions(): Command {
  return new Command('shardweave report')
    .description('Lays runs over each other on one page that opens from disk and asks nobody.')
    .argument('<RUN...>', 'directories that --out of train has named')
    .option('--out <FILE>', 'the page', 'report.html')
    .option('--quiet', 'print nothing but errors');
}
