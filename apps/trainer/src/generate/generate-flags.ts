// The flags of the command `generate`, an interface that users script against.

import { Command, InvalidArgumentError, Option } from 'commander';
import { device } from '../config/flag-kinds.js';
import type { DeviceChoice } from '../device-choice.js';
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

const number = (expected: string, holds: (value: number) => boolean) => (text: string) => {
  const value = Number(text);
  if (text.trim() === '' || !holds(value)) {
    throw new InvalidArgumentError(`Expected ${expected}.`);
  }
  return value;
};
export const whole = (least: number) =>
  number(
    `a whole number of at least ${least}`,
    (value) => Number.isSafeInteger(value) && value >= least,
  );

function deviceOf(text: string): DeviceChoice {
  const { success, data } = device.schema.safeParse(text);
  if (!success) {
    throw new InvalidArgumentError(`Expected ${device.schema.description}.`);
  }
  return data;
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
    .option('--max-tokens <N>', 'of a text or an answer', whole(1), 256)
    .option(
      '--temperature <X>',
      'below 1: likelier tokens more often; 0: the likeliest',
      number('a number of at least 0', (value) => value >= 0 && value < Number.POSITIVE_INFINITY),
      0.8,
    )
    .option('--top-k <K>', 'draw among so many of the likeliest (default: all)', whole(1))
    .option(
      '--top-p <P>',
      'draw among the likeliest that reach this probability together',
      number('a number above 0, at most 1', (value) => value > 0 && value <= 1),
      1,
    )
    .option(
      '--min-p <P>',
      'draw among those so many times as probable as the likeliest',
      number('a number from 0 to 1', (value) => value >= 0 && value <= 1),
      0,
    )
    .option('--seed <N>', 'of the draws', whole(0), 1)
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
    .option('--device <NAME>', 'as train takes it: auto is a GPU if there is one', deviceOf, 'auto')
    .option('--device-budget <BYTES>', 'most bytes on the device, with offload', whole(1))
    .option('--threads <N>', 'of the cpu device (default: all cores)', whole(1));
}
