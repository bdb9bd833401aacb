// The command `report`: draws several runs on one page.

import { writeFileSync } from 'node:fs';
import { Command } from 'commander';
import { UsageError } from '../errors.js';
import { reportOf } from '../output/report.js';
import { describeSystemError } from '../system-error.js';
import { defineCommand } from './define-command.js';

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
    try {
      writeFileSync(out, html);
    } catch (cause) {
      throw new UsageError(
        `--out: ${out} can't be written (${describeSystemError(cause)}). Give a file in a directory that exists.`,
        { cause },
      );
    }
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
