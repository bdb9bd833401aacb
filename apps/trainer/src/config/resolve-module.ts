// What --model FILE.mjs means for a run: what has to be known of the module, and which flags are
// for our own models alone.

import { resolve } from 'node:path';
import { UsageError } from '../errors.js';
import { keyOf } from '../flags/flag.js';
import { ADAPTER_FLAGS, DEFAULT_SEQ_AT_MOST, type Flags } from '../flags/train-flags.js';
import { describeOwnModel } from '../own-model/open-own-model.js';
import type { ModuleSource, TokenizerName } from '../run-config.js';
import type { ModuleConfig } from '../task/text-config.js';

export const GPT2_VOCABULARY = 50257;
/** The vocabulary of the tokenizer of bytes. */
const BYTES = 256;

/** The flags of what a module decides itself, or has no place for. */
const NOT_OF_MODULES = [...ADAPTER_FLAGS, 'dropout'] as const;

/**
 * What a run has to know of a module that people have written.
 * @throws {UsageError} for flags that no module can have, and for a file that can't be used
 */
export async function resolveModule(flags: Flags, model: ModuleSource): Promise<ModuleConfig> {
  const { task, seed, precision, seq = DEFAULT_SEQ_AT_MOST } = flags;
  const refused =
    task === 'lm' ? NOT_OF_MODULES.find((name) => flags[name] !== undefined) : ('task' as const);
  if (refused !== undefined) {
    throw new UsageError(
      `--${keyOf(refused)} is for our own models, got --model ${model.path}. Leave it out: the module says what it is and what its loss is.`,
    );
  }
  const vocab_size = moduleTokenizer(flags) === 'gpt2' ? GPT2_VOCABULARY : BYTES;
  const module = await describeOwnModel(model, { seq, vocab_size, precision, seed });
  const own = ['data', 'valid', 'validFraction'] as const;
  const idle = module.rows && own.find((name) => flags[name] !== undefined && !isOwn(flags, name));
  if (idle !== undefined) {
    throw new UsageError(
      `--${keyOf(idle)}: the module of ${model.path} has rows of its own. Leave it out, or have create return no rows.`,
    );
  }
  if (flags.strategy === 'offload' && !module.isSequential) {
    throw new UsageError(
      `--strategy offload: expected the module of ${model.path} to be a Sequential, whose layers are sliced, got another one. Make it one, or use --strategy fsdp.`,
    );
  }
  return module;
}

/** Whether --valid names the module itself, as the config file of its run does. */
function isOwn({ valid, model }: Flags, name: 'data' | 'valid' | 'validFraction'): boolean {
  return name === 'valid' && valid !== undefined && resolve(valid) === resolve(model);
}

/** @throws {UsageError} for the tokenizer of a model directory, which a module has not */
export function moduleTokenizer({ tokenizer = 'byte', model }: Flags): TokenizerName {
  if (tokenizer === 'model') {
    throw new UsageError(
      `--tokenizer model: a module has none, got --model ${model}. Choose --tokenizer byte or gpt2.`,
    );
  }
  return tokenizer;
}
