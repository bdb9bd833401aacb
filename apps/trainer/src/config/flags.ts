// The command line of `train` as typed, and its config file.

import { Command, Option } from 'commander';
import { z } from 'zod';
import type { CommandSpec } from '../commands/define-command.js';
import { UsageError } from '../errors.js';
import { expectedBy, type FlagKind, flag } from '../flags/flag-kinds.js';
import { FLAGS, type Flag, type Flags, GROUPS, keyOf, RARE } from '../flags/train-flags.js';
import { PRESETS } from '../model/presets.js';
import { readConfigFile, refuseMovedRun } from './config-file.js';

/** The keys of a config file, with the flag and the schema of each. */
const KEYS = new Map(
  Object.entries(FLAGS).map(([name, { kind }]) => [
    keyOf(name),
    { name, schema: kind.schema as z.ZodType },
  ]),
);

/** The JSON schema of a config file, for editors. */
export function configSchema(): object {
  const entries = Object.entries(FLAGS).map(
    ([name, { kind, says }]) =>
      [keyOf(name), kind.schema.optional().meta({ description: says })] as const,
  );
  const schema = z.strictObject(Object.fromEntries(entries));
  return { title: 'A run of shardweave train', ...z.toJSONSchema(schema, { io: 'input' }) };
}

/** The command `train` without its work. */
export const TRAIN: Omit<CommandSpec<Flags>, 'run'> = {
  options: trainOptions,
  examples: [
    { line: 'train', says: 'a small GPT learns Moby Dick, its parameters sharded over two ranks' },
    {
      line: 'train --data my.txt --ranks 4 --transport ws --precision bf16 --out runs/first',
      says: 'your own text, four processes, 16 bits; metrics and the model are left in runs/first',
    },
    {
      line: 'train --model DIR --data chats.jsonl --lora-rank 16 --out runs/tuned',
      says: 'adapters beside a frozen model of the Hugging Face Hub learn conversations',
    },
    {
      line: 'train --config runs/first/config.yaml --seed 2 --out runs/second',
      says: 'a run again, with another seed: each leaves the config that it had',
    },
    {
      line: 'train --strategy offload --device-budget 8000000 --micro-batches 4',
      says: 'a model larger than its device, 8 MB of it at a time',
    },
  ],
  rare: RARE,
  read: checkFlags,
};

/** Merges flags: typed ones win over those of the config file, which win over defaults. */
function checkFlags(given: Readonly<Record<string, unknown>>): Flags {
  const { config, ...typed } = given;
  const found: Partial<Record<keyof Flags, unknown>> =
    config === undefined ? {} : readConfigFile(String(config), KEYS);
  for (const [name, value] of Object.entries(typed) as [keyof Flags, unknown][]) {
    const { kind } = FLAGS[name];
    const checked = kind.schema.safeParse(kind.read(value));
    if (!checked.success) {
      const expected = expectedBy(kind as FlagKind<unknown>, value);
      throw new UsageError(
        `--${keyOf(name)}: expected ${expected}, got "${String(value)}". See --help.`,
      );
    }
    found[name] = checked.data;
  }
  // Either says how long the run is, so the one that is typed counts before the other of the file.
  if (typed.steps !== undefined && typed.epochs === undefined) {
    delete found.epochs;
  } else if (typed.epochs !== undefined && typed.steps === undefined) {
    delete found.steps;
  }
  if (config !== undefined && typed.out === undefined) {
    refuseMovedRun(String(config), found);
  }
  const all = Object.entries(FLAGS).map(([name, { value }]) => [
    name,
    found[name as keyof Flags] ?? value,
  ]);
  return Object.fromEntries(all) as Flags;
}

/** The command with all its options; it parses nothing by itself. */
function trainOptions(): Command {
  const command = new Command('shardweave train')
    .description('Trains a GPT-2, Llama or Qwen on a text, its parameters sharded over ranks.')
    .usage('[flags]')
    .addHelpText('after', presetsHelp())
    .option(
      '--config <FILE>',
      'flags from a YAML or JSON file, such as the config.yaml of a run; those given here count before it',
    );
  for (const [group, flags] of Object.entries(GROUPS)) {
    for (const { kind, typed, says } of Object.values(flags) as Flag<unknown>[]) {
      const option = new Option(typed, says).helpGroup(group);
      if (kind === (flag as FlagKind<unknown>)) {
        // Where `--x` comes before `--no-x`, the library has no value for a flag that is not typed.
        const isOff = typed.startsWith('--no-');
        const other = isOff ? typed.replace('--no-', '--') : typed.replace('--', '--no-');
        const hidden = new Option(other).hideHelp();
        command.addOption(isOff ? hidden : option).addOption(isOff ? option : hidden);
      } else {
        command.addOption(option);
      }
    }
  }
  return command;
}

function presetsHelp(): string {
  const rows = Object.entries(PRESETS).map(
    ([name, { config, summary }]) =>
      `  ${name.padEnd(12)} ${config.n_layer} layers, width ${config.n_embd}, ${config.n_head} heads, ${config.n_positions} positions; ${summary}`,
  );
  return `\nPresets of --model:\n${rows.join('\n')}\n`;
}
