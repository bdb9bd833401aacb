// What every command does with its arguments: help is printed, and what can't be parsed is a sentence.

import { type Command, CommanderError } from 'commander';
import { UsageError } from './errors.js';

/**
 * Parses `args` into `command`, whose options it sets. Help and the like reject as commander's own errors
 * with exit code 0.
 * @throws {UsageError} for anything that is no flag of the command
 */
export function parseCommand(
  command: Command,
  { args, write }: { readonly args: readonly string[]; readonly write: (text: string) => void },
): void {
  command
    .allowExcessArguments(false)
    .exitOverride()
    .helpOption('-h, --help', 'print this and end')
    .configureHelp({ helpWidth: 100 })
    .configureOutput({ writeOut: write, writeErr: () => {} });
  try {
    command.parse(args, { from: 'user' });
  } catch (error) {
    if (error instanceof CommanderError && error.exitCode !== 0) {
      throw new UsageError(`${complaint(error, command)} See --help.`, { cause: error });
    }
    throw error;
  }
}

/** The library's message as one sentence. */
function complaint(error: CommanderError, command: Command): string {
  if (error.code === 'commander.excessArguments') {
    return `expected flags alone, got "${command.args.join(' ')}".`;
  }
  const [what, ...hints] = error.message.replace(/^error: /, '').split('\n');
  return [
    `${what!.replace(/\.$/, '')}.`,
    ...hints.map((hint) => hint.replace(/^\((.*)\)$/, '$1')),
  ].join(' ');
}
