// What all commands have in common: flags are parsed, help is printed, and a mistake in the flags
// becomes one sentence.

import { type Command, CommanderError, Help } from 'commander';
import { UsageError } from '../errors.js';
import type { CliCommand, CommandContext, CommandExample } from './cli-command.js';
import { ownName } from './foreign-flags.js';

/** A command as its file writes it. */
export interface CommandSpec<Flags extends object> {
  /** The command with all its flags; it parses nothing by itself. */
  readonly options: () => Command;
  readonly examples: readonly CommandExample[];
  /** The flags, by their names in camelCase, that only `--help all` has. */
  readonly rare?: readonly string[];
  /**
   * Makes the flags from what commander gives, with names in camelCase; default: they are taken as
   * they are. `operands` are what stands beside the flags, where the command takes such.
   * @throws {UsageError} for a value that the flag doesn't take
   */
  readonly read?: (given: Readonly<Record<string, unknown>>, operands: readonly string[]) => Flags;
  /** Works; resolves to the exit code. */
  readonly run: (flags: Flags, context: CommandContext) => Promise<number>;
}

export function defineCommand<Flags extends object>(spec: CommandSpec<Flags>): CliCommand {
  return {
    examples: spec.examples,
    parse: (args, write) => parseCommand(spec, { args, write }),
    run: async (context) => {
      const [, ...args] = context.args;
      const flags = parseCommand(spec, { args, write: (text) => context.out.write(text) });
      return spec.run(flags, context);
    },
  };
}

/** A command that writes files and then prints lines about them, unless it is to be quiet. */
export function defineWriter<Flags extends { readonly quiet?: boolean }>(
  spec: Omit<CommandSpec<Flags>, 'run'> & {
    /** Works until it is done or called off; resolves to the lines. */
    readonly write: (flags: Flags, signal: AbortSignal) => Promise<readonly string[]>;
  },
): CliCommand {
  return defineCommand<Flags>({
    ...spec,
    options: () => spec.options().option('--quiet', 'print nothing but errors'),
    run: async (flags, { out, listen }) => {
      const lines = await spec.write(flags, listen().signal);
      if (flags.quiet !== true) {
        out.write(lines.map((line) => `${line}\n`).join(''));
      }
      return 0;
    },
  });
}

/** See CliCommand.parse. */
export function parseCommand<Flags extends object>(
  { options, examples, rare = [], read }: Omit<CommandSpec<Flags>, 'run'>,
  { args, write }: { readonly args: readonly string[]; readonly write: (text: string) => void },
): Flags {
  const helpAt = args.findIndex((arg) => arg === '--help' || arg === '-h');
  const isRareShown = helpAt >= 0 && args[helpAt + 1] === 'all';
  const isShown = (name: string) => isRareShown || !rare.includes(name);
  const command = options()
    .addHelpText('after', examplesHelp(examples))
    .addHelpText('after', rare.length === 0 || isRareShown ? '' : MORE_HELP)
    .allowExcessArguments(false)
    .exitOverride()
    .helpOption('-h, --help', 'print this and end')
    .configureHelp({
      helpWidth: 100,
      visibleOptions: (own) =>
        new Help().visibleOptions(own).filter((option) => isShown(option.attributeName())),
    })
    .configureOutput({ writeOut: write, writeErr: () => {} });
  try {
    command.parse(args, { from: 'user' });
  } catch (error) {
    if (error instanceof CommanderError && error.exitCode !== 0) {
      throw new UsageError(`${complaint(error, command)} See --help.`, { cause: error });
    }
    throw error;
  }
  return read === undefined ? command.opts<Flags>() : read(command.opts(), command.args);
}

/** The last line of a help that leaves flags out. */
const MORE_HELP = '\n--help all has the flags that few need, too.\n';

function examplesHelp(examples: readonly CommandExample[]): string {
  const lines = examples.flatMap(({ line, says }) => [`  # ${says}`, `  shardweave ${line}`]);
  return `\nExamples:\n${lines.join('\n')}\n`;
}

/** The library's message for a value that a flag doesn't take. */
const WRONG_VALUE =
  /^error: option '(--[\w-]+).*' argument '(.*)' is invalid\. (Expected|Allowed choices are) (.*)\.$/s;

/** The library's message as one sentence. */
function complaint(error: CommanderError, command: Command): string {
  if (error.code === 'commander.excessArguments') {
    return `expected flags alone, got "${command.args.join(' ')}".`;
  }
  const value = WRONG_VALUE.exec(error.message);
  if (value !== null) {
    const [, flag, typed, how, expected] = value;
    return `${flag}: expected ${how === 'Expected' ? '' : 'one of '}${expected}, got "${typed}".`;
  }
  const [, unknown] = /unknown option '(.*)'/.exec(error.message) ?? [];
  const own =
    unknown &&
    ownName(
      unknown,
      command.options.map(({ long }) => long ?? ''),
    );
  if (own) {
    return `unknown option '${unknown}'. Here it is ${own}.`;
  }
  const [what, ...hints] = error.message.replace(/^error: /, '').split('\n');
  return [
    `${what!.replace(/\.$/, '')}.`,
    ...hints.map((hint) => hint.replace(/^\((.*)\)$/, '$1')),
  ].join(' ');
}
