// What all commands have in common: flags are parsed by the command's table, help is printed, and a
// mistake in the flags becomes one sentence.

import { Command, CommanderError, Help, Option } from 'commander';
import { UsageError } from '../errors.js';
import {
  type Flag,
  type FlagTable,
  flag,
  helpOf,
  keyOf,
  readTyped,
  type ValuesOf,
  withDefaults,
} from '../flags/flag.js';
import { type FlagKind, onOff } from '../flags/flag-kinds.js';
import { ownName } from '../flags/foreign-names.js';
import { nearest } from '../nearest.js';
import type { CliCommand, CommandContext, CommandExample } from './cli-command.js';
import { withLocalData } from './local-data.js';
import { type ModelNeed, withLocalModel } from './local-model.js';
import type { DownloadStreams } from './show-downloads.js';

/** A command as its file writes it. */
export interface CommandSpec<Table extends FlagTable> {
  readonly name: string;
  readonly description: string;
  readonly flags: Table;
  /** The flags by the heads of --help; default: all of them are options. */
  readonly groups?: Readonly<Record<string, FlagTable>>;
  /** The flags that only `--help all` has. */
  readonly rare?: readonly (keyof Table)[];
  /** What the command needs of a --model that is a name on the Hub; default: it takes no names. */
  readonly model?: ModelNeed | ((flags: ValuesOf<Table>) => ModelNeed);
  /** What --help says before the examples. */
  readonly notes?: string;
  readonly examples: readonly CommandExample[];
  /**
   * Adds to the flags that were typed those of other sources.
   * @throws {UsageError} where a source can't be used
   */
  readonly complete?: (typed: Partial<ValuesOf<Table>>) => Partial<ValuesOf<Table>>;
  /** Works; resolves to the exit code. */
  readonly run: (flags: ValuesOf<Table>, context: CommandContext) => Promise<number>;
}

export function defineCommand<Table extends FlagTable>(spec: CommandSpec<Table>): CliCommand {
  return {
    flags: spec.flags,
    examples: spec.examples,
    parse: (args, write) => parseCommand(spec, { args, write }),
    run: async (context) => {
      const [, ...args] = context.args;
      const flags = parseCommand(spec, { args, write: (text) => context.out.write(text) });
      const need = typeof spec.model === 'function' ? spec.model(flags) : spec.model;
      const found = need === undefined ? flags : await withLocalFiles(flags, need, context);
      return spec.run(found, context);
    },
  };
}

/** The flags with what they name on the Hub on this machine. */
export async function withLocalFiles<F extends object>(
  flags: F,
  need: ModelNeed,
  context: DownloadStreams,
): Promise<F> {
  // Without weights nothing is computed, and data counts where --epochs asks how much there is.
  const { epochs } = flags as { readonly epochs?: number | undefined };
  const needsFiles = need === 'weights' || epochs !== undefined;
  const local = await withLocalModel(flags, need, context);
  return await withLocalData(local, { needsFiles }, context);
}

/** The flag of commands that print about their work. */
export const QUIET = flag(onOff, false, ['--quiet', 'print nothing but errors']);

/** A command that writes files and then prints lines about them, unless it is to be quiet. */
export function defineWriter<Table extends FlagTable & { readonly quiet: Flag<boolean> }>(
  spec: Omit<CommandSpec<Table>, 'run'> & {
    /**
     * Works until it is done or called off; resolves to the lines. One that takes no signal is
     * ended by the system.
     */
    readonly write: (
      flags: ValuesOf<Table>,
      stop: { readonly signal: AbortSignal },
    ) => Promise<readonly string[]>;
  },
): CliCommand {
  return defineCommand<Table>({
    ...spec,
    run: async (flags, { out, listen }) => {
      const stop = {
        get signal() {
          return listen().signal;
        },
      };
      const lines = await spec.write(flags, stop);
      if (!flags.quiet) {
        out.write(lines.map((line) => `${line}\n`).join(''));
      }
      return 0;
    },
  });
}

/** See CliCommand.parse. */
export function parseCommand<Table extends FlagTable>(
  spec: Omit<CommandSpec<Table>, 'run'>,
  { args, write }: { readonly args: readonly string[]; readonly write: (text: string) => void },
): ValuesOf<Table> {
  const { flags, complete = (typed) => typed } = spec;
  const helpAt = args.findIndex((arg) => arg === '--help' || arg === '-h');
  const command = commandOf(spec, args[helpAt + 1] === 'all');
  command.configureOutput({ writeOut: write, writeErr: () => {} });
  try {
    command.parse(helpAt < 0 ? withLists(args, flags) : ['--help'], { from: 'user' });
  } catch (error) {
    if (error instanceof CommanderError && error.exitCode !== 0) {
      throw new UsageError(`${complaint(error, command)} See --help.`, { cause: error });
    }
    throw error;
  }
  const operands = namesOf(flags)
    .filter((name) => isOperand(flags[name]!))
    .map((name, index) => [name, command.processedArgs[index]]);
  const typed = { ...command.opts(), ...Object.fromEntries(operands) };
  return withDefaults(flags, complete(readTyped(flags, typed)));
}

/** The arguments, of which the words behind a flag of a list are one. */
function withLists(args: readonly string[], flags: FlagTable): string[] {
  const lists = Object.entries(flags).flatMap(([name, { kind }]) =>
    kind.isList === true ? [`--${keyOf(name)}`] : [],
  );
  const isFlag = (arg: string) => arg.startsWith('-');
  const joined: string[] = [];
  let isInList = false;
  for (const [i, arg] of args.entries()) {
    const isBehind: boolean = isInList || (lists.includes(args[i - 2]!) && !isFlag(args[i - 1]!));
    isInList = isBehind && !isFlag(arg);
    joined.push(isInList ? `${joined.pop()},${arg}` : arg);
  }
  return joined;
}

const namesOf = (table: FlagTable) => Object.keys(table);
const isOperand = ({ typed }: Flag<unknown>) => !typed.startsWith('-');

/** The command of the library that parses the flags and formats their help. */
function commandOf<Table extends FlagTable>(
  { name, description, flags, ...more }: Omit<CommandSpec<Table>, 'run'>,
  isRareShown: boolean,
): Command {
  const { groups = { 'Options:': flags }, rare = [], notes = '', examples } = more;
  const isShown = (name: string) => isRareShown || !rare.includes(name);
  const command = new Command(`shardweave ${name}`)
    .usage(usageOf(flags))
    .description(description)
    .addHelpText('after', notes)
    .addHelpText('after', examplesHelp(examples))
    .addHelpText('after', rare.length === 0 || isRareShown ? '' : MORE_HELP)
    .allowExcessArguments(false)
    .showSuggestionAfterError(false)
    .exitOverride()
    .helpOption('-h, --help', 'print this and end')
    .configureHelp({
      helpWidth: 80,
      visibleOptions: (own) =>
        new Help().visibleOptions(own).filter((option) => isShown(option.attributeName())),
    });
  for (const [head, table] of Object.entries(groups)) {
    for (const flag of Object.values(table)) {
      if (isOperand(flag)) {
        command.argument(flag.typed, flag.says);
      } else {
        optionsOf(flag).map((option) => command.addOption(option.helpGroup(head)));
      }
    }
  }
  return command;
}

/** What is typed after the name of a command, such as `--model DIR [flags]`. */
function usageOf(flags: FlagTable): string {
  const all = Object.values(flags).filter(({ isNeeded }) => isNeeded);
  return [...all.map(({ typed }) => typed.replaceAll(/[<>]/g, '')), '[flags]'].join(' ');
}

/** The options of a flag: one that is on or off may be typed with and without `no-`. */
function optionsOf(flag: Flag<unknown>): Option[] {
  const { kind, typed, isNeeded } = flag;
  const option = new Option(typed, helpOf(flag)).makeOptionMandatory(isNeeded);
  if (kind === (onOff as FlagKind<unknown>)) {
    // Where `--x` comes before `--no-x`, the library has no value for a flag that is not typed.
    const isOff = typed.startsWith('--no-');
    const other = isOff ? typed.replace('--no-', '--') : typed.replace('--', '--no-');
    const hidden = new Option(other).hideHelp();
    return isOff ? [hidden, option] : [option, hidden];
  }
  return kind.isRepeated === true
    ? [option.argParser((text: string, before: string[] = []) => [...before, text])]
    : [option];
}

/** The last line of a help that leaves flags out. */
const MORE_HELP = '\n--help all has the flags that few need, too.\n';

function examplesHelp(examples: readonly CommandExample[]): string {
  const lines = examples.flatMap(({ line, says }) => [`  # ${says}`, `  shardweave ${line}`]);
  return `\nExamples:\n${lines.join('\n')}\n`;
}

/** The library's message as one sentence. */
function complaint(error: CommanderError, command: Command): string {
  if (error.code === 'commander.excessArguments') {
    return `expected flags alone, got "${command.args.join(' ')}".`;
  }
  const [, unknown] = /unknown option '(.*)'/s.exec(error.message) ?? [];
  if (unknown === undefined) {
    return error.message.replace(/^error: |\.$/g, '').concat('.');
  }
  const [name = '', ...value] = unknown.split('=');
  const names = command.options.map(({ long }) => long!.slice(2));
  const flags = names.map((flag) => `--${flag}`);
  if (value.length > 0 && flags.includes(name)) {
    return `${name} takes no value, got "${value.join('=')}".`;
  }
  const own = ownName(name, flags);
  const meant = own === undefined ? nearest(name.replace(/^-+/, ''), names) : undefined;
  const hint = own ? ` Here it is ${own}.` : meant ? ` Did you mean --${meant}?` : '';
  return `unknown option '${unknown}'.${hint}`;
}
