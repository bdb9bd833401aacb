// The command line as typed: the flags, their help and what each accepts. An interface that others
// script against, frozen by test/flags.test.ts. What they mean together is resolve-config.ts.

import { Command, Option } from 'commander';
import { z } from 'zod';
import { type CommandSpec, parseCommand } from './commands/define-command.js';
import { UsageError } from './errors.js';
import { DEFAULT_PRESET, PRESETS } from './model/presets.js';
import type { SaveEvery } from './run-config.js';

const whole = (least: number) =>
  z
    .string()
    .regex(/^\d+$/)
    .transform(Number)
    .refine((n) => Number.isSafeInteger(n) && n >= least)
    .describe(`a whole number of at least ${least}`);
const real = (what: string, holds: (x: number) => boolean) =>
  z
    .string()
    .regex(/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i)
    .transform(Number)
    .refine((x) => Number.isFinite(x) && holds(x))
    .describe(what);
const oneOf = <const T extends readonly [string, ...string[]]>(values: T) =>
  z.enum(values).describe(`one of ${values.join(', ')}`);
const file = z.string().min(1).describe('a path');
const nonNegative = real('a number of at least 0', (x) => x >= 0);
const probability = real('a number from 0 to below 1', (x) => x >= 0 && x < 1);

/** What every flag accepts. A missing one is undefined: defaults that depend on others come later. */
const FLAGS = z.object({
  strategy: oneOf(['single', 'fsdp', 'ddp', 'offload']).default('fsdp'),
  ranks: whole(1).optional(),
  transport: oneOf(['memory', 'shm', 'ws', 'mpi']).default('memory'),
  device: z
    .string()
    .transform((list) => list.split(','))
    .pipe(z.array(z.enum(['auto', 'webgpu', 'cpu'])))
    .describe('auto, webgpu or cpu, or a list of them by rank such as cpu,webgpu')
    .default(['auto']),
  precision: oneOf(['fp32', 'fp16', 'bf16']).default('fp32'),
  fp32Reduce: z.boolean().default(false),
  threads: whole(1).optional(),
  reshard: z.boolean().default(true),
  checkpointActivations: z.boolean().default(false),
  gatherCap: whole(1).optional(),
  deviceBudget: whole(1).optional(),
  slices: whole(1).optional(),
  microBatches: whole(1).default(1),
  offloadDir: file.optional(),
  fresh: z.boolean().default(false),
  cpuOffload: z.boolean().default(false),
  injectDelayMs: nonNegative.default(0),
  trace: file.optional(),
  model: file.default(DEFAULT_PRESET),
  dropout: probability.optional(),
  loraRank: whole(1).optional(),
  loraAlpha: real('a number above 0', (x) => x > 0).optional(),
  loraDropout: probability.optional(),
  loraTargets: z
    .string()
    .transform((list) =>
      list === 'all-linear' ? list : list.split(',').map((name) => name.trim()),
    )
    .pipe(z.union([z.literal('all-linear'), z.array(z.string().min(1))]))
    .describe('all-linear, or names of layers such as q_proj,v_proj')
    .optional(),
  adapter: file.optional(),
  tokenizer: oneOf(['model', 'byte', 'gpt2']).optional(),
  data: file.optional(),
  valid: file.optional(),
  validFraction: real('a number above 0 and below 1', (x) => x > 0 && x < 1).optional(),
  evalEvery: whole(1).optional(),
  trainOnPrompt: z.boolean().default(false),
  cache: file.optional(),
  order: oneOf(['shuffle', 'sequential']).default('shuffle'),
  batch: whole(1).default(16),
  seq: whole(1).optional(),
  steps: whole(1).default(480),
  gradAccum: whole(1).default(1),
  sync: z.boolean().default(true),
  lr: nonNegative.optional(),
  weightDecay: nonNegative.default(0.1),
  beta1: probability.default(0.9),
  beta2: probability.default(0.98),
  eps: nonNegative.default(1e-8),
  clip: nonNegative.default(1),
  schedule: oneOf(['constant', 'cosine']).default('cosine'),
  warmup: whole(0).optional(),
  seed: whole(0).default(1),
  saveEvery: z
    .string()
    .regex(/^(\d+|(\d+\.?\d*|\.\d+)m)$/)
    .transform((text) =>
      text.endsWith('m') ? { minutes: Number(text.slice(0, -1)) } : { steps: Number(text) },
    )
    .refine(({ steps = 1, minutes = 1 }: SaveEvery) => steps > 0 && minutes > 0)
    .describe('a number of steps such as 100, or of minutes such as 5m')
    .optional(),
  keep: whole(1).optional(),
  resume: file.optional(),
  maxRestarts: whole(0).default(0),
  out: file.optional(),
  dashboard: z
    .union([z.literal(true), whole(0).refine((port) => port < 65536)])
    .describe('a port up to 65535, or none')
    .optional(),
  quiet: z.boolean().default(false),
});

/** Every flag, checked one by one. */
export type Flags = z.output<typeof FLAGS>;

/** Where the page is without a port of one's own, so that a tunnel or a bookmark finds the next run, too. */
export const DASHBOARD_PORT = 8642;
/** Longest sequence taken without --seq: attention at GPT-2's 1024 is no default for a CPU. */
export const DEFAULT_SEQ_AT_MOST = 256;
/** Small models take larger steps: measured on the default preset; for GPT-2 its usual rate. */
export const DEFAULT_LR = { small: 0.004, large: 0.0003 } as const;
/** Steps between evaluations without --eval-every. */
export const DEFAULT_EVAL_EVERY = 100;
/** What most tools take, as a compromise of room and quality. */
export const DEFAULT_LORA_RANK = 16;
/** The newest save, and the one before it for where that is damaged. */
export const DEFAULT_KEEP = 2;
/** Steps of warm-up under the cosine schedule without --warmup. */
export const DEFAULT_WARMUP = 20;

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
      line: 'train --strategy offload --device-budget 8000000 --micro-batches 4',
      says: 'a model larger than its device, 8 MB of it at a time',
    },
  ],
  read: checkFlags,
};

/**
 * Flags from the arguments after the command's name.
 *
 * @throws {UsageError} for an unknown flag or a value that the flag doesn't take.
 * @throws {CommanderError} with exit code 0 once --help has been printed through `write`.
 */
export function parseFlags(args: readonly string[], write: (text: string) => void): Flags {
  return parseCommand(TRAIN, { args, write });
}

function checkFlags(given: Readonly<Record<string, unknown>>): Flags {
  const result = FLAGS.safeParse(given);
  if (result.success) {
    return result.data;
  }
  const name = String(result.error.issues[0]?.path[0]) as keyof Flags;
  const { options } = trainOptions();
  const flag = options.find((option) => option.attributeName() === name)?.long ?? name;
  const expected = FLAGS.shape[name].description ?? descriptionOf(FLAGS.shape[name]);
  throw new UsageError(`${flag}: expected ${expected}, got "${String(given[name])}". See --help.`);
}

/** The command with all its options; it parses nothing by itself. */
export function trainOptions(): Command {
  const command = new Command('shardweave train')
    .description('Trains a GPT-2, Llama or Qwen on a text, its parameters sharded over ranks.')
    .usage('[flags]')
    .addHelpText('after', presetsHelp());
  const add = (group: string, flags: string, text: string) =>
    command.addOption(new Option(flags, text).helpGroup(group));

  const where = 'Where it runs:';
  add(
    where,
    '--strategy <NAME>',
    'single: one rank; fsdp: parameters sharded over ranks; ddp: whole on each; offload: resting off the device of one rank (default: fsdp)',
  );
  add(where, '--ranks <N>', 'world size (default: 2; with single: 1)');
  add(
    where,
    '--transport <NAME>',
    'memory: all ranks in this thread; shm: a thread each; ws, mpi: a process each (default: memory)',
  );
  add(
    where,
    '--device <auto|webgpu|cpu>',
    'or a list by rank: cpu,webgpu (default: auto, a GPU if there is one)',
  );
  add(where, '--threads <N>', "of a rank's cpu device (default: cores / ranks, at least 1)");
  add(where, '--trace <FILE>', 'write a Chrome trace of the run, for Perfetto');

  const sharding = 'Precision and sharding:';
  add(
    sharding,
    '--precision <fp32|fp16|bf16>',
    '16-bit: mixed, with f32 master weights (default: fp32)',
  );
  add(sharding, '--fp32-reduce', 'reduce 16-bit gradients in f32');
  add(sharding, '--reshard', 'free gathered parameters after forward (default)');
  add(sharding, '--no-reshard', 'keep them until backward');
  add(sharding, '--checkpoint-activations', 'recompute each block in backward');
  add(
    sharding,
    '--gather-cap <BYTES>',
    'most bytes of gathered parameters to prefetch into (default: 64 MiB)',
  );
  add(sharding, '--inject-delay-ms <N>', 'delay every collective, for experiments (default: 0)');

  add(sharding, '--cpu-offload', 'shards, their gradients and optimizer state rest in host memory');

  const offload = 'Offload (--strategy offload):';
  add(
    offload,
    '--device-budget <BYTES>',
    'most bytes that the device may hold; slices are chosen for it (default: no limit)',
  );
  add(offload, '--slices <N>', 'without a budget: parts of the model that run apart (default: 3)');
  add(offload, '--micro-batches <M>', 'parts of the rows that pass a slice in turn (default: 1)');
  add(
    offload,
    '--offload-dir <DIR>',
    'rest on disk there, with fsdp too (default: in host memory)',
  );
  add(offload, '--fresh', 'delete the state of an earlier run in --offload-dir, and start anew');

  const model = 'Model and data:';
  add(
    model,
    '--model <PRESET|DIR>',
    `a preset, or a model directory of the Hugging Face layout (default: ${DEFAULT_PRESET})`,
  );
  add(model, '--dropout <P>', "over the model's own");
  add(
    model,
    '--tokenizer <model|byte|gpt2>',
    "model: the directory's own tokenizer.json (default where it has one; else gpt2 for a vocabulary of 50257 or more, else byte)",
  );
  add(
    model,
    '--data <FILE>',
    'a text in UTF-8, or .jsonl: a document a line, as {"text"}, {"prompt", "completion"} or {"messages"} (default: the novel Moby Dick)',
  );
  add(model, '--valid <FILE>', 'evaluate on that, in one of these formats');
  add(model, '--valid-fraction <X>', 'or on so much of the data, which is not trained on');
  add(
    model,
    '--eval-every <N>',
    `steps between evaluations; there is one in the end, too (default: ${DEFAULT_EVAL_EVERY})`,
  );
  add(model, '--train-on-prompt', 'count prompts and all roles in the loss, not the answers alone');
  add(
    model,
    '--cache <DIR>',
    "where tokens of data are kept for later runs (default: SHARDWEAVE_CACHE, or the system's cache directory)",
  );
  add(model, '--order <shuffle|sequential>', 'of the rows (default: shuffle)');

  const lora = 'LoRA (any of these: adapters are trained, the model is frozen):';
  add(lora, '--lora-rank <R>', `columns of the adapters (default: ${DEFAULT_LORA_RANK})`);
  add(lora, '--lora-alpha <X>', 'adapters count alpha / rank times (default: twice the rank)');
  add(lora, '--lora-dropout <P>', 'on what goes into them (default: 0)');
  add(
    lora,
    '--lora-targets <NAMES>',
    'all-linear, or names of layers such as q_proj,v_proj (default: all-linear)',
  );
  add(lora, '--adapter <DIR>', 'go on training the adapters of a PEFT directory');

  const training = 'Training:';
  add(
    training,
    '--batch <B>',
    'rows of a step over all ranks and micro-steps; the first ranks take one more (default: 16)',
  );
  add(
    training,
    '--seq <T>',
    `tokens of a row (default: the model's positions, at most ${DEFAULT_SEQ_AT_MOST})`,
  );
  add(training, '--steps <S>', 'optimizer steps (default: 480)');
  add(
    training,
    '--grad-accum <K>',
    'micro-steps of a step, at most as many as a rank has rows (default: 1)',
  );
  add(training, '--no-sync', 'with K > 1, reduce gradients on the last micro-step alone');
  add(
    training,
    '--lr <X>',
    `peak learning rate (default: ${DEFAULT_LR.small}, ${DEFAULT_LR.large} from 10 M parameters on)`,
  );
  add(
    training,
    '--weight-decay <X>',
    'of AdamW, on tensors of two or more dimensions (default: 0.1)',
  );
  add(training, '--beta1 <X>', '(default: 0.9)');
  add(training, '--beta2 <X>', '(default: 0.98)');
  add(training, '--eps <X>', '(default: 1e-8)');
  add(training, '--clip <NORM>', 'largest gradient norm, 0: off (default: 1)');
  add(training, '--schedule <constant|cosine>', 'of the learning rate (default: cosine)');
  add(
    training,
    '--warmup <W>',
    `steps of linear warm-up (default: ${DEFAULT_WARMUP} with cosine, else 0)`,
  );
  add(training, '--seed <N>', 'of weights, order and dropout (default: 1)');

  const saves = 'Saves:';
  add(
    saves,
    '--save-every <N|Nm>',
    'save all that the run needs to go on under --out, every N steps or minutes, in the end and at Ctrl-C',
  );
  add(
    saves,
    '--keep <N>',
    `newest saves that are kept, beside the best by what is evaluated (default: ${DEFAULT_KEEP})`,
  );
  add(
    saves,
    '--resume <auto|DIR>',
    'go on from the newest save under --out, or from one that is given; steps, ranks, strategy and device may be others',
  );
  add(
    saves,
    '--max-restarts <N>',
    'start again from the last save after a rank died, at most N times (default: 0)',
  );

  const output = 'Output:';
  add(
    output,
    '--out <DIR>',
    'write metrics.jsonl, summary.json, report.html and model/ there, among others',
  );
  add(
    output,
    '--dashboard [PORT]',
    `show the run on a page of this machine, whose address is printed (default port: ${DASHBOARD_PORT})`,
  );
  add(output, '--quiet', 'print nothing but errors');
  return command;
}

function presetsHelp(): string {
  const rows = Object.entries(PRESETS).map(
    ([name, { config, summary }]) =>
      `  ${name.padEnd(12)} ${config.n_layer} layers, width ${config.n_embd}, ${config.n_head} heads, ${config.n_positions} positions; ${summary}`,
  );
  return `\nPresets of --model:\n${rows.join('\n')}\n`;
}

/** The description under the wrappers that `default` and `optional` put around a schema. */
function descriptionOf(schema: unknown): string {
  let at = schema as { description?: string; unwrap?: () => unknown };
  while (at.description === undefined && at.unwrap !== undefined) {
    at = at.unwrap() as typeof at;
  }
  return at.description ?? 'another value';
}
