// The flags of the command `generate`, an interface that users script against.

import { Command, InvalidArgumentError, Option } from 'commander';
import {
  bytes,
  device,
  expectedBy,
  type FlagKind,
  nonNegative,
  share,
  shareOrNone,
  whole,
} from '../flags/flag-kinds.js';
import type { TokenizerName } from '../run-config.js';
import type { OpenFlags } from './open-model.js';

export interface GenerateFlags extends OpenFlags {
  readonly prompt?: string;
  readonly chat?: boolean;
  readonly tokenizer?: TokenizerName;
  readonly maxTokens: number;
  readonly temperature: number;
  readonly topK?: number;
  readonly topP: number;
  readonly minP: number;
  readonly seed: number;
  readonly stop?: readonly string[];
  readonly quiet?: boolean;
}

/** Reads what was typed for a flag as `train` would. */
export function reading<T>(kind: FlagKind<T>): (text: string) => T {
  return (text) => {
    const { success, data } = kind.schema.safeParse(kind.read(text));
    if (!success) {
      throw new InvalidArgumentError(`Expected ${expectedBy(kind, text)}.`);
    }
    return data;
  };
}

/** The command with all its options; it parses nothing by itself. */
export function generateOptions(): Command {
  const command = new Command('shardweave generate')
    .description('Continues a text, or answers in a conversation, with a model and its adapters.')
    .usage('--model DIR [--adapter DIR] [--prompt TEXT | --chat] [flags]')
    .requiredOption('--model <DIR>', 'config.json, weights and tokenizer.json, or a run')
    .option('--adapter <DIR>', "PEFT's adapter_config.json and adapter_model.safetensors")
    .option('--prompt <TEXT>', 'what to continue; without one a text begins at the begin token')
    .addOption(
      new Option(
        '--chat',
        "a conversation by the model's template: each line of standard input is a turn",
      ).conflicts('prompt'),
    )
    .addOption(
      new Option('--tokenizer <NAME>', 'as train takes it').choices(['model', 'byte', 'gpt2']),
    )
    .option('--max-tokens <N>', 'of a text or an answer', reading(whole(1)), 256)
    .option(
      '--temperature <X>',
      'below 1: likelier tokens more often; 0: the likeliest',
      reading(nonNegative),
      0.8,
    )
    .option('--top-k <K>', 'draw among so many of the likeliest (default: all)', reading(whole(1)))
    .option(
      '--top-p <P>',
      'draw among the likeliest that reach this probability together',
      reading(share),
      1,
    )
    .option(
      '--min-p <P>',
      'draw among those so many times as probable as the likeliest',
      reading(shareOrNone),
      0,
    )
    .option('--seed <N>', 'of the draws', reading(whole(0)), 1)
    .option(
      '--stop <TEXT>',
      'end before this text; may be given again',
      (text: string, before: readonly string[] = []) => {
        if (text === '') {
          throw new InvalidArgumentError('Expected a text.');
        }
        return [...before, text];
      },
    );
  return placeOptions(command).option('--quiet', 'print the text after the prompt alone');
}

/** Adds the flags for where and how a model is computed, which OpenFlags has. */
export function placeOptions(command: Command): Command {
  return command
    .addOption(
      new Option(
        '--precision <NAME>',
        'what weights are held and computed with in (default: the 16 bits of the file, or fp32)',
      ).choices(['fp32', 'fp16', 'bf16']),
    )
    .addOption(
      new Option('--strategy <NAME>', 'offload: the model rests off its device')
        .choices(['single', 'offload'])
        .default('single'),
    )
    .option(
      '--device <NAME>',
      'as train takes it: auto is a GPU if there is one',
      reading(device),
      'auto',
    )
    .option('--device-budget <BYTES>', 'most bytes on the device, with offload', reading(bytes))
    .option('--threads <N>', 'of the cpu device (default: all cores)', reading(whole(1)));
}
