// What commands beside `train` do alike: their flags, then their work, then a line or a sentence and an exit code.

import { type Command, CommanderError } from 'commander';
import { TrainerError } from './errors.js';
import { Terminal, type TerminalOptions } from './output/terminal.js';
import { parseCommand } from './parse-command.js';

export type CommandStreams = Pick<TerminalOptions, 'out' | 'err' | 'env'>;

/**
 * Parses `args` and runs `work` with the flags; resolves to the exit code.
 * @param work resolves to a line that is printed unless --quiet is given
 */
export async function runCommand<Flags extends { readonly quiet?: boolean }>(
  command: Command,
  options: { readonly args: readonly string[]; readonly streams: CommandStreams },
  work: (flags: Flags) => Promise<string>,
): Promise<number> {
  const { args, streams } = options;
  const terminal = new Terminal({ ...streams, isQuiet: false, steps: 0 });
  try {
    parseCommand(command, { args, write: (text) => streams.out.write(text) });
    const flags = command.opts<Flags>();
    const line = await work(flags);
    if (flags.quiet !== true) {
      streams.out.write(`${line}\n`);
    }
    return 0;
  } catch (error) {
    if (error instanceof CommanderError) {
      return error.exitCode;
    }
    if (error instanceof TrainerError) {
      terminal.failure(error.message);
      return error.exitCode;
    }
    terminal.failure(error instanceof Error ? (error.stack ?? error.message) : String(error));
    return 1;
  }
}
