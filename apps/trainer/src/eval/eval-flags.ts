// The flags of the command `eval`: an interface that others script against.

import { Command, Option } from 'commander';
import { whole } from '../flags/flag-kinds.js';
import { DEFAULT_SEQ_AT_MOST } from '../flags/train-flags.js';
import { placeOptions, reading } from '../generate/generate-flags.js';
import type { OpenFlags } from '../generate/open-model.js';
import type { TokenizerName } from '../run-config.js';

export interface EvalFlags extends OpenFlags {
  readonly data?: string;
  readonly trainOnPrompt: boolean;
  readonly tokenizer?: TokenizerName;
  readonly seq?: number;
  readonly batch: number;
  readonly cache?: string;
  readonly json: boolean;
}

/** The command with all its options; it parses nothing by itself. */
export function evalOptions(): Command {
  const command = new Command('shardweave eval')
    .description(
      'Tells the loss, perplexity and bits per byte of a model on a text. Each target of the data counts once; the first token of a text or a document is none. A row begins without what stood before it.',
    )
    .usage('--model DIR [--adapter DIR] [--data FILE] [flags]')
    .requiredOption('--model <DIR>', 'config.json and weights, or a run')
    .option('--adapter <DIR>', "PEFT's adapter_config.json and adapter_model.safetensors")
    .option(
      '--data <FILE>',
      'a text in UTF-8, or documents, as train takes them (default: the novel Moby Dick)',
    )
    .option('--train-on-prompt', 'count prompts and all roles, not the answers alone', false)
    .addOption(
      new Option('--tokenizer <NAME>', 'as train takes it').choices(['model', 'byte', 'gpt2']),
    )
    .option(
      '--seq <T>',
      `tokens of a row (default: the model's positions, at most ${DEFAULT_SEQ_AT_MOST})`,
      reading(whole(1)),
    )
    .option('--batch <B>', 'rows at once', reading(whole(1)), 16)
    .option('--cache <DIR>', 'where tokens of data are kept, as train takes it')
    .option('--json', 'one object, for programs', false);
  return placeOptions(command);
}
