// The flags of `train`, which are the keys of its config file and the fields of a run, too: each
// with its help and what it accepts. They are an interface that users script against, frozen by
// test/flags.test.ts. config/resolve-config.ts decides what flags mean together.

import { DEFAULT_PRESET } from '../model/presets.js';
import {
  countOrPart,
  devices,
  duration,
  type FlagKind,
  file,
  flag,
  nonNegative,
  oneOf,
  part,
  port,
  positive,
  probability,
  saveEvery,
  targets,
  whole,
} from './flag-kinds.js';

/** The ways to train, in the order in which `plan` shows them. */
export const STRATEGIES = ['single', 'fsdp', 'ddp', 'offload'] as const;
/**
 * The port of the page where the user gives none, always the same so that a tunnel or a bookmark
 * finds the next run, too.
 */
export const DASHBOARD_PORT = 8642;
/**
 * The longest sequence without --seq: attention over GPT-2's 1024 would be too slow as a default on
 * a CPU.
 */
export const DEFAULT_SEQ_AT_MOST = 256;
/**
 * The learning rates without --lr. Small models take larger steps, as measured on the default
 * preset; GPT-2 gets its usual rate.
 */
export const DEFAULT_LR = { small: 0.004, large: 0.0003 } as const;
/** The number of steps without --steps and --epochs. */
export const DEFAULT_STEPS = 480;
/** The number of steps between evaluations without --eval-every. */
export const DEFAULT_EVAL_EVERY = 100;
/**
 * The batches of an evaluation without --eval-batches. A batch of it takes a third of a step, so
 * with --eval-every 100 evaluations take a quarter of a run's time at most.
 */
export const DEFAULT_EVAL_BATCHES = 100;
/** The rank that most tools use, as a compromise between size and quality. */
export const DEFAULT_LORA_RANK = 16;
/** The number of saves that are kept: the newest, and the one before it in case that is damaged. */
export const DEFAULT_KEEP = 2;
/** The steps of warm-up in the cosine schedule without --warmup. */
export const DEFAULT_WARMUP = 20;
/** The part of all steps that the decay of wsd takes without --decay-steps. */
export const DEFAULT_DECAY = 0.2;

/** A flag of `train`; `T` is the type that the run gets. */
export interface Flag<T> {
  readonly kind: FlagKind<NonNullable<T>>;
  /**
   * The value where neither a flag nor a file gives one; undefined where resolve-config.ts decides.
   */
  readonly value: T;
  /** The flag as --help prints it. */
  readonly typed: string;
  readonly says: string;
}

function optional<T extends {}>(
  kind: FlagKind<T>,
  typed: string,
  says: string,
): Flag<T | undefined> {
  return { kind: kind as FlagKind<NonNullable<T>>, value: undefined, typed, says };
}

function defaulted<T extends {}>(
  kind: FlagKind<T>,
  value: T,
  [typed, says]: readonly [string, string],
): Flag<T> {
  return { kind: kind as FlagKind<NonNullable<T>>, value, typed, says };
}

/** All flags, in the groups of --help. */
export const GROUPS = {
  'Where it runs:': {
    strategy: defaulted(oneOf(STRATEGIES), 'fsdp', [
      '--strategy <NAME>',
      'single: one rank; fsdp: parameters sharded over ranks; ddp: whole on each; offload: resting off the device of one rank (default: fsdp)',
    ]),
    ranks: optional(whole(1), '--ranks <N>', 'world size (default: 2; with single: 1)'),
    transport: defaulted(oneOf(['memory', 'shm', 'ws', 'mpi']), 'memory', [
      '--transport <NAME>',
      'memory: all ranks in this thread; shm: a thread each; ws, mpi: a process each (default: memory)',
    ]),
    device: defaulted(
      devices,
      ['auto'],
      [
        '--device <auto|webgpu|cpu>',
        "webgpu:NAME, a part of an adapter's name, or webgpu:INDEX, as doctor lists them; or a list by rank: cpu,webgpu (default: auto, a GPU if there is one; ranks of a host take turns among its cards)",
      ],
    ),
    threads: optional(
      whole(1),
      '--threads <N>',
      "of a rank's cpu device (default: cores / ranks, at least 1)",
    ),
    trace: optional(file, '--trace <FILE>', 'write a Chrome trace of the run, for Perfetto'),
  },
  'Precision and sharding:': {
    precision: defaulted(oneOf(['fp32', 'fp16', 'bf16']), 'fp32', [
      '--precision <fp32|fp16|bf16>',
      '16-bit: mixed, with f32 master weights (default: fp32)',
    ]),
    fp32Reduce: defaulted(flag, false, ['--fp32-reduce', 'reduce 16-bit gradients in f32']),
    reshard: defaulted(flag, true, [
      '--no-reshard',
      'keep gathered parameters until backward; --reshard, the default, frees them after forward',
    ]),
    checkpointActivations: defaulted(flag, false, [
      '--checkpoint-activations',
      'recompute each block in backward',
    ]),
    gatherCap: optional(
      whole(1),
      '--gather-cap <BYTES>',
      'most bytes of gathered parameters to prefetch into (default: 64 MiB)',
    ),
    injectDelayMs: defaulted(nonNegative, 0, [
      '--inject-delay-ms <N>',
      'delay every collective, for experiments (default: 0)',
    ]),
    cpuOffload: defaulted(flag, false, [
      '--cpu-offload',
      'shards, their gradients and optimizer state rest in host memory',
    ]),
  },
  'Offload (--strategy offload):': {
    deviceBudget: optional(
      whole(1),
      '--device-budget <BYTES>',
      'most bytes that the device may hold; slices are chosen for it (default: no limit)',
    ),
    slices: optional(
      whole(1),
      '--slices <N>',
      'without a budget: parts of the model that run apart (default: 3)',
    ),
    microBatches: defaulted(whole(1), 1, [
      '--micro-batches <M>',
      'parts of the rows that pass a slice in turn (default: 1)',
    ]),
    offloadDir: optional(
      file,
      '--offload-dir <DIR>',
      'rest on disk there, with fsdp too (default: in host memory)',
    ),
    fresh: defaulted(flag, false, [
      '--fresh',
      'delete the state of an earlier run in --offload-dir, and start anew',
    ]),
  },
  'Model and data:': {
    model: defaulted(file, DEFAULT_PRESET, [
      '--model <PRESET|DIR>',
      `a preset, or a model directory of the Hugging Face layout (default: ${DEFAULT_PRESET})`,
    ]),
    dropout: optional(probability, '--dropout <P>', "over the model's own"),
    tokenizer: optional(
      oneOf(['model', 'byte', 'gpt2']),
      '--tokenizer <model|byte|gpt2>',
      "model: the directory's own tokenizer.json (default where it has one; else gpt2 for a vocabulary of 50257 or more, else byte)",
    ),
    data: optional(
      file,
      '--data <FILE>',
      'a text in UTF-8, or JSON: a document a line or in a list, as {"text"}, {"prompt", "completion"} or {"messages"} among others (default: the novel Moby Dick)',
    ),
    valid: optional(file, '--valid <FILE>', 'evaluate on that, in one of these formats'),
    validFraction: optional(
      part,
      '--valid-fraction <X>',
      'or on so much of the data, which is not trained on',
    ),
    evalEvery: optional(
      whole(1),
      '--eval-every <N>',
      `steps between evaluations; there is one in the end, too (default: ${DEFAULT_EVAL_EVERY})`,
    ),
    evalBatches: optional(
      whole(1),
      '--eval-batches <N>',
      `batches of an evaluation, the first ones of its data each time (default: ${DEFAULT_EVAL_BATCHES})`,
    ),
    trainOnPrompt: defaulted(flag, false, [
      '--train-on-prompt',
      'count prompts and all roles in the loss, not the answers alone',
    ]),
    cache: optional(
      file,
      '--cache <DIR>',
      "where tokens of data are kept for later runs (default: SHARDWEAVE_CACHE, or the system's cache directory)",
    ),
    order: defaulted(oneOf(['shuffle', 'sequential']), 'shuffle', [
      '--order <shuffle|sequential>',
      'of the rows (default: shuffle)',
    ]),
  },
  'LoRA (any of these: adapters are trained, the model is frozen):': {
    loraRank: optional(
      whole(1),
      '--lora-rank <R>',
      `columns of the adapters (default: ${DEFAULT_LORA_RANK})`,
    ),
    loraAlpha: optional(
      positive,
      '--lora-alpha <X>',
      'adapters count alpha / rank times (default: twice the rank)',
    ),
    loraDropout: optional(probability, '--lora-dropout <P>', 'on what goes into them (default: 0)'),
    loraTargets: optional(
      targets,
      '--lora-targets <NAMES>',
      'all-linear, or names of layers such as q_proj,v_proj (default: all-linear)',
    ),
    adapter: optional(file, '--adapter <DIR>', 'go on training the adapters of a PEFT directory'),
  },
  'Training:': {
    batch: defaulted(whole(1), 16, [
      '--batch <B>',
      'rows of a step over all ranks and micro-steps; the first ranks take one more (default: 16)',
    ]),
    seq: optional(
      whole(1),
      '--seq <T>',
      `tokens of a row (default: the model's positions, at most ${DEFAULT_SEQ_AT_MOST})`,
    ),
    steps: optional(whole(1), '--steps <S>', `optimizer steps (default: ${DEFAULT_STEPS})`),
    epochs: optional(
      positive,
      '--epochs <N>',
      'or so many that each row of the data is learnt N times; a part is fine, too',
    ),
    gradAccum: defaulted(whole(1), 1, [
      '--grad-accum <K>',
      'micro-steps of a step, at most as many as a rank has rows (default: 1)',
    ]),
    sync: defaulted(flag, true, [
      '--no-sync',
      'with K > 1, reduce gradients on the last micro-step alone',
    ]),
    lr: optional(
      nonNegative,
      '--lr <X>',
      `peak learning rate (default: ${DEFAULT_LR.small}, ${DEFAULT_LR.large} from 10 M parameters on)`,
    ),
    weightDecay: defaulted(nonNegative, 0.1, [
      '--weight-decay <X>',
      'of AdamW, on tensors of two or more dimensions (default: 0.1)',
    ]),
    beta1: defaulted(probability, 0.9, ['--beta1 <X>', '(default: 0.9)']),
    beta2: defaulted(probability, 0.98, ['--beta2 <X>', '(default: 0.98)']),
    eps: defaulted(nonNegative, 1e-8, ['--eps <X>', '(default: 1e-8)']),
    clip: defaulted(nonNegative, 1, [
      '--clip <NORM>',
      'largest gradient norm, 0: off (default: 1)',
    ]),
    schedule: defaulted(oneOf(['constant', 'cosine', 'wsd']), 'cosine', [
      '--schedule <constant|cosine|wsd>',
      'of the learning rate; wsd: warm-up, stable, decay by a line (default: cosine)',
    ]),
    warmup: optional(
      whole(0),
      '--warmup <W>',
      `steps of linear warm-up (default: ${DEFAULT_WARMUP}, with constant 0)`,
    ),
    decaySteps: optional(
      countOrPart,
      '--decay-steps <N|X>',
      `steps of decay that wsd ends with, or what part of all (default: ${DEFAULT_DECAY})`,
    ),
    patience: optional(
      whole(1),
      '--patience <N>',
      'end after so many evaluations in a row without a lower loss',
    ),
    final: optional(
      oneOf(['best', 'last']),
      '--final <best|last>',
      'the weights that become model/: of the best evaluation, or of the last step (default: last, with --patience best)',
    ),
    timeLimit: optional(
      duration,
      '--time-limit <TIME>',
      'end with the step at which steps have taken so long: 90s, 30m or 2h',
    ),
    seed: defaulted(whole(0), 1, ['--seed <N>', 'of weights, order and dropout (default: 1)']),
  },
  'Saves:': {
    saveEvery: optional(
      saveEvery,
      '--save-every <N|Nm>',
      'save all that the run needs to go on under --out, every N steps or minutes, in the end and at Ctrl-C',
    ),
    keep: optional(
      whole(1),
      '--keep <N>',
      `newest saves that are kept, beside the best by what is evaluated (default: ${DEFAULT_KEEP})`,
    ),
    resume: optional(
      file,
      '--resume <auto|DIR>',
      'go on from the newest save under --out, or from one that is given; steps, ranks, strategy and device may be others',
    ),
    maxRestarts: defaulted(whole(0), 0, [
      '--max-restarts <N>',
      'start again from the last save after a rank died, at most N times (default: 0)',
    ]),
  },
  'Output:': {
    out: optional(
      file,
      '--out <DIR>',
      'write metrics.jsonl, summary.json, report.html and model/ there, among others',
    ),
    dashboard: optional(
      port,
      '--dashboard [PORT]',
      `show the run on a page of this machine, whose address is printed (default port: ${DASHBOARD_PORT})`,
    ),
    check: defaulted(flag, false, [
      '--check',
      'at the end, print what plan says of the run beside what it took; summary.json has both by tag',
    ]),
    quiet: defaulted(flag, false, ['--quiet', 'print nothing but errors']),
  },
};

/** Every flag, by its name in camelCase. */
export const FLAGS = {
  ...GROUPS['Where it runs:'],
  ...GROUPS['Precision and sharding:'],
  ...GROUPS['Offload (--strategy offload):'],
  ...GROUPS['Model and data:'],
  ...GROUPS['LoRA (any of these: adapters are trained, the model is frozen):'],
  ...GROUPS['Training:'],
  ...GROUPS['Saves:'],
  ...GROUPS['Output:'],
};

/** The values of all flags, each checked by itself. */
export type Flags = {
  readonly [Name in keyof typeof FLAGS]: (typeof FLAGS)[Name] extends Flag<infer T> ? T : never;
};

/** The key of a flag in a config file: as it is typed, without the dashes and without `no-`. */
export function keyOf(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}
