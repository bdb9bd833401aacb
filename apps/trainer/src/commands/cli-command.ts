// What a command is to the binary, and what it is run with. define-command.ts makes one.

import type { Interrupt } from '../listen-to-signals.js';
import type { TerminalOptions } from '../output/terminal.js';

/** Where a command reads, writes and is told to end. */
export interface CommandContext extends Pick<TerminalOptions, 'out' | 'err' | 'env'> {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  /** What was typed behind `shardweave`, the command's name first. */
  readonly args: readonly string[];
  /** The script of the binary, which rank processes, threads and probes run. */
  readonly entry: string;
  /**
   * Signals that ask the command to end. Until it calls this they end the process by themselves: a
   * command that doesn't look at them must not call it.
   */
  readonly listen: () => Interrupt;
}

/** A line that --help prints, and a test parses or runs. */
export interface CommandExample {
  /** What is typed behind `shardweave`, the command's name first. */
  readonly line: string;
  readonly says: string;
}

export interface CliCommand {
  readonly examples: readonly CommandExample[];
  /**
   * Parses what is typed behind the command's name. --help prints through `write`, and throws.
   * @throws {UsageError} for anything that is no flag of the command, or no value of the flag
   * @throws {CommanderError} with exit code 0 for --help
   */
  readonly parse: (args: readonly string[], write: (text: string) => void) => object;
  /**
   * Parses and works; resolves to the exit code. What it rejects with is told as a sentence by
   * runCommand.
   */
  readonly run: (context: CommandContext) => Promise<number>;
}
