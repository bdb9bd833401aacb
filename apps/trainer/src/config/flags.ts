// The command line of `train` as typed, and its config file.

import { z } from 'zod';
import type { CommandSpec } from '../commands/define-command.js';
import { flag, helpOf, keyOf } from '../flags/flag.js';
import { file } from '../flags/flag-kinds.js';
import { FLAGS, type Flags, GROUPS, RARE } from '../flags/train-flags.js';
import { PRESETS } from '../model/presets.js';
import { readConfigFile, refuseMovedRun } from './config-file.js';

/** The JSON schema of a config file, for editors. */
export function configSchema(): object {
  const entries = Object.entries(FLAGS).map(
    ([name, of]) =>
      [keyOf(name), of.kind.schema.optional().meta({ description: helpOf(of) })] as const,
  );
  const schema = z.strictObject(Object.fromEntries(entries));
  return { title: 'A run of shardweave train', ...z.toJSONSchema(schema, { io: 'input' }) };
}

/** The flag that only the command line has. */
const CONFIG = {
  config: flag(file, undefined, [
    '--config <FILE>',
    'flags from a YAML or JSON file, such as the config.yaml of a run; those given here count before it',
  ]),
};

/** The command `train` without its work. */
export const TRAIN = {
  name: 'train',
  description:
    'Trains a GPT-2, Llama or Qwen on a text, or one of these or a BERT to embed, to label or to rank texts, its parameters sharded over ranks.',
  flags: { ...CONFIG, ...FLAGS },
  model: 'weights',
  groups: { 'Options:': CONFIG, ...GROUPS },
  rare: RARE,
  notes: presetsHelp(),
  examples: [
    { line: 'train', says: 'a small GPT learns Moby Dick, its parameters sharded over two ranks' },
    {
      line: 'train --data my.txt --ranks 4 --transport ws --precision bf16 --out runs/first',
      says: 'your own text, four processes, 16 bits; what it learnt is left in runs/first',
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
  complete: withConfigFile,
} satisfies Omit<CommandSpec<typeof FLAGS & typeof CONFIG>, 'run'>;

/** Merges flags: typed ones win over those of the config file, which win over defaults. */
function withConfigFile<Given extends Partial<Flags> & { readonly config?: string | undefined }>(
  typed: Given,
): Given {
  const { config } = typed;
  if (config === undefined) {
    return withModelOf(typed);
  }
  const { steps, epochs, ...others } = readConfigFile(config, FLAGS);
  // Either says how long the run is, so the one that is typed counts before the other of the file.
  const length = typed.steps === undefined && typed.epochs === undefined ? { steps, epochs } : {};
  const found = { ...length, ...others, ...typed, config: undefined };
  if (typed.out === undefined) {
    refuseMovedRun(config, found);
  }
  return withModelOf(found);
}

/** The model of the weights that a run begins with is its own, unless it is given another. */
function withModelOf<Given extends Partial<Flags>>(given: Given): Given {
  const { initFrom, model = initFrom } = given;
  return model === undefined ? given : { ...given, model };
}

function presetsHelp(): string {
  const rows = Object.entries(PRESETS).map(
    ([name, { config, summary }]) =>
      `  ${name.padEnd(12)} ${config.n_layer} layers, width ${config.n_embd}, ${config.n_head} heads, ${config.n_positions} positions; ${summary}`,
  );
  return `\nPresets of --model, with their parameters:\n${rows.join('\n')}`;
}
