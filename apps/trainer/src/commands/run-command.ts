// Turns what was typed after `shardweave` into an exit code: finds the command, runs it, and prints
// why it failed.

import { CommanderError } from 'commander';
import { failureOf, UsageError } from '../errors.js';
import { nearest } from '../nearest.js';
import { Terminal } from '../output/terminal.js';
import type { CommandContext } from './cli-command.js';
import { COMMANDS, type CommandEntry } from './command-table.js';

/** Runs the command that the arguments begin with. */
export async function runCommand(context: CommandContext): Promise<number> {
  const args = withoutHelp(context.args);
  const [name] = args;
  try {
    if (name === '--version' || name === '-v') {
      context.out.write(`${context.version}\n`);
      return 0;
    }
    if (name === undefined || name === '--help' || name === '-h') {
      context.out.write(overview(context.version));
      return name === undefined ? 2 : 0;
    }
    const command = await findCommand(name).load();
    return await command.run({ ...context, args });
  } catch (error) {
    return tell(error, context);
  }
}

/** The arguments with `help train all` as `train --help all`. */
function withoutHelp([first, ...rest]: readonly string[]): readonly string[] {
  if (first !== 'help') {
    return first === undefined ? [] : [first, ...rest];
  }
  const [about, ...more] = rest;
  return about === undefined ? ['--help'] : [about, '--help', ...more];
}

/** @throws {UsageError} for a name that no command has */
function findCommand(name: string): CommandEntry {
  const found = COMMANDS.find((command) => command.name === name);
  if (found !== undefined) {
    return found;
  }
  const names = COMMANDS.map((command) => command.name);
  if (name.startsWith('-')) {
    throw new UsageError(
      `expected a command before ${name}: one of ${names.join(', ')}. See shardweave --help.`,
    );
  }
  const meant = nearest(name, names);
  const hint = meant === undefined ? '' : ` Did you mean ${meant}?`;
  throw new UsageError(
    `expected one of ${names.join(', ')}, got "${name}".${hint} See shardweave --help.`,
  );
}

function overview(version: string): string {
  const rows = COMMANDS.map(({ name, summary }) => `  ${name.padEnd(10)} ${summary}`);
  return [
    `shardweave ${version}: trains models over several GPUs, machines or processes`,
    '',
    'Usage: shardweave COMMAND [flags]',
    '',
    'Commands:',
    ...rows,
    '',
    'shardweave COMMAND --help prints its flags and examples.',
    '',
  ].join('\n');
}

/**
 * Prints why a command ended, as one sentence unless it is a mistake of this program. Returns the
 * exit code.
 */
function tell(error: unknown, context: CommandContext): number {
  if (error instanceof CommanderError) {
    return error.exitCode; // help was printed
  }
  const { exitCode, failure } = failureOf(error);
  if (failure !== undefined) {
    const { out, err, env } = context;
    new Terminal({ out, err, env, isQuiet: false, steps: 0 }).failure(failure);
  }
  return exitCode;
}
