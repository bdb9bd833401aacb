// The flags of `train`, read without running it.

import { parseCommand } from '../../src/commands/define-command.js';
import { TRAIN } from '../../src/config/flags.js';
import type { Flags } from '../../src/flags/train-flags.js';

/**
 * Reads flags from the arguments after the command's name.
 * @throws {UsageError} for an unknown flag, or a value that the flag doesn't take
 * @throws {CommanderError} with exit code 0 after --help has been printed through `write`
 */
export function parseFlags(args: readonly string[], write: (text: string) => void): Flags {
  return parseCommand(TRAIN, { args, write });
}
