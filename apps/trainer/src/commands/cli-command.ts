// What a command is to the binary, and what it runs with. define-command.ts makes commands.

import type { FlagTable } from '../flags/flag.js';
import type { Interrupt } from '../interrupt.js';
import type { TerminalOptions } from '../output/terminal.js';

/** Where a command reads and writes, and how it learns that it is to end. */
export interface CommandContext extends Pick<TerminalOptions, 'out' | 'err' | 'env'> {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  /** What was typed after `shardweave`, the command's name first. */
  readonly args: readonly string[];
  /** The script of the binary, which rank processes, threads and probes run. */
  readonly entry: string;
  /** The version of this program. */
  readonly version: string;
  /**
   * Returns what asks the command to end. Until it is called, signals end the process by
   * themselves, and so they do once what it returns is disposed of; a command that does not look
   * at them must not keep it.
   */
  readonly listen: () => Interrupt;
}

/** A line that --help prints, and that a test parses or runs. */
export interface CommandExample {
  /** What is typed after `shardweave`, the command's name first. */
  readonly line: string;
  readonly says: string;
}

export interface CliCommand {
  readonly flags: FlagTable;
  readonly examples: readonly CommandExample[];
  /**
   * Parses what was typed after the command's name. --help prints through `write`, and throws.
   * @throws {UsageError} for anything that is not a flag of the command, or not a value of its flag
   * @throws {CommanderError} with exit code 0 for --help
   */
  readonly parse: (args: readonly string[], write: (text: string) => void) => object;
  /** Parses and works; resolves to the exit code. runCommand prints a rejection as a sentence. */
  readonly run: (context: CommandContext) => Promise<number>;
}
