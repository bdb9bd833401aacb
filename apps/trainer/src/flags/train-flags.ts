// The flags of `train`, which are the keys of its config file and the fields of a run, too: each
// with its help and what it accepts. They are an interface that users script against, frozen by
// test/flags.test.ts. config/resolve-config.ts decides what flags mean together.

import { BLOCK_TYPES } from '@shardweave/dtypes/blocks';
import { DEFAULT_PRESET } from '../model/presets.js';
import { ANSWER_TASKS, MOST_ANSWER_TOKENS } from '../task/answer-tasks.js';
import { type Flag, flag, type ValuesOf } from './flag.js';
import {
  bytes,
  countOrPart,
  counts,
  data,
  devices,
  duration,
  file,
  filledText,
  nonNegative,
  oneOf,
  onOff,
  part,
  port,
  positive,
  probability,
  ranks,
  saveEvery,
  smoothing,
  targets,
  threads,
  whole,
} from './flag-kinds.js';

/** The ways to train, in the order in which `plan` shows them. */
export const STRATEGIES = ['single', 'fsdp', 'ddp', 'offload'] as const;
/** What a run can learn. */
export const TASKS = ['lm', 'embed', 'classify', 'rerank', 'dpo', 'orpo'] as const;
/** What computes the matrix products of a cpu device. */
export const CLASS_WEIGHTS = ['none', 'balanced'] as const;

export const PRODUCTS = ['auto', 'wasm', 'native'] as const;
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
 * preset; GPT-2 gets its usual rate, and a trained model that learns another task a smaller one.
 */
export const DEFAULT_LR = { small: 0.004, large: 0.0003, tuned: 0.00005 } as const;
/** The number of steps without --steps and --epochs. */
export const DEFAULT_STEPS = 480;
/** The number of steps between evaluations without --eval-every. */
export const DEFAULT_EVAL_EVERY = 100;
/**
 * The batches of an evaluation without --eval-batches. A batch of it takes a third of a step, so
 * with --eval-every 100 evaluations take a quarter of a run's time at most.
 */
export const DEFAULT_EVAL_BATCHES = 100;
/**
 * The answers of an evaluation without --eval-answers. Each of their tokens takes a forward, so few
 * are made; they tell a half from two thirds.
 */
export const DEFAULT_EVAL_ANSWERS = 32;
/** How a frozen base can rest: as numbers, or in ggml's blocks. */
export const BASE_TYPES = ['f32', 'f16', 'bf16', ...BLOCK_TYPES] as const;
/** The rank that most tools use, as a compromise between size and quality. */
export const DEFAULT_LORA_RANK = 16;
/** The number of saves that are kept: the newest, and the one before it in case that is damaged. */
export const DEFAULT_KEEP = 2;
/**
 * The steps of warm-up without --warmup, where the rate is not constant. A short run takes a tenth
 * of its steps: of 24 steps, 20 of warm-up would leave hardly any to learn in.
 */
export const DEFAULT_WARMUP = { most: 20, part: 0.1 };
/** The part of all steps that the decay of wsd takes without --decay-steps. */
export const DEFAULT_DECAY = 0.2;

/**
 * Where a flag has an effect: in all runs, or in those of a condition that flag-effects.ts puts in
 * words.
 */
export type AppliesTo =
  | 'all'
  | 'cpu device'
  | 'fsdp'
  | 'fsdp in memory'
  | 'offload'
  | 'resting'
  | 'offload directory'
  | 'reducing in 16 bits'
  | 'micro-steps'
  | 'elastic'
  | 'documents'
  | 'embedding'
  | 'ranking'
  | 'labelling'
  | 'reference'
  | 'odds'
  | 'evaluation'
  | 'conversations'
  | 'answers'
  | 'wsd'
  | 'falling rate'
  | 'out'
  | 'saves'
  | 'text';

/** A flag of `train`; `T` is the type that the run gets. */
export interface TrainFlag<T> extends Flag<T> {
  /**
   * What another value means for a run that goes on. `fixed`: it is another run, and is refused;
   * `told`: its losses are not those of the run that stopped, which is said; `free`: neither.
   */
  readonly atResume: 'fixed' | 'told' | 'free';
  readonly appliesTo: AppliesTo;
}

/** Flags of a class at a resume, such as `told('fsdp')(kind, value, help)` with --strategy fsdp. */
function flagOf(atResume: TrainFlag<unknown>['atResume']) {
  return (appliesTo: AppliesTo) =>
    <T extends {}, V extends T | undefined>(...of: Parameters<typeof flag<T, V>>) => ({
      ...flag<T, V>(...of),
      atResume,
      appliesTo,
    });
}

const fixed = flagOf('fixed');
const told = flagOf('told');
const free = flagOf('free');

/** All flags, in the groups of --help. */
export const GROUPS = {
  'Where it runs:': {
    strategy: told('all')(oneOf(STRATEGIES), 'fsdp', [
      '--strategy <NAME>',
      'single: one rank; fsdp: parameters sharded over ranks; ddp: whole on each; offload: resting off the device of one rank',
    ]),
    ranks: told('all')(ranks, undefined, [
      '--ranks <N>',
      'world size (default: 2; with single: 1)',
    ]),
    transport: free('all')(oneOf(['memory', 'shm', 'ws', 'mpi']), 'memory', [
      '--transport <NAME>',
      'memory: all ranks in this thread; shm: a thread each; ws, mpi: a process each',
    ]),
    elastic: free('all')(onOff, false, [
      '--elastic',
      'goes on where ranks are lost or come, to the same weights: with those that are left, or, where fsdp shards what is trained, from its newest save',
    ]),
    minRanks: free('elastic')(whole(1), undefined, [
      '--min-ranks <N>',
      'the fewest ranks with which the job goes on (default: 1)',
    ]),
    maxRanks: free('elastic')(ranks, undefined, [
      '--max-ranks <N>',
      'the most ranks of the job (default: one for each of --gradient-groups)',
    ]),
    listen: free('elastic')(filledText, undefined, [
      '--listen <HOST[:PORT]>',
      'the address of this machine at which others join (default: 127.0.0.1)',
    ]),
    device: free('all')(devices, ['auto'] as const, [
      '--device <auto|webgpu|cpu>',
      "webgpu:NAME, a part of an adapter's name, or webgpu:INDEX, as doctor lists them; or a list by rank: cpu,webgpu (default: auto, a GPU if there is one; ranks of a host take turns among its cards)",
    ]),
    threads: free('all')(threads, undefined, [
      '--threads <N>',
      "of a rank's cpu device (default: cores / ranks, at least 1)",
    ]),
    products: free('cpu device')(oneOf(PRODUCTS), 'auto', [
      '--products <auto|wasm|native>',
      'of a cpu device: native: a library of this machine, faster and with its own bits; wasm: the same bits everywhere; auto: native, but for several hosts and steps that were wasm',
    ]),
    trace: free('all')(file, undefined, [
      '--trace <FILE>',
      'write a Chrome trace of the run, for Perfetto',
    ]),
  },
  'Precision and sharding:': {
    precision: told('all')(oneOf(['fp32', 'fp16', 'bf16']), 'fp32', [
      '--precision <fp32|fp16|bf16>',
      '16-bit: mixed, with f32 master weights',
    ]),
    fp32Reduce: told('reducing in 16 bits')(onOff, false, [
      '--fp32-reduce',
      'reduce 16-bit gradients in f32',
    ]),
    reshard: free('fsdp')(onOff, true, [
      '--no-reshard',
      'keep gathered parameters until backward; --reshard, the default, frees them after forward',
    ]),
    checkpointActivations: free('all')(onOff, false, [
      '--checkpoint-activations',
      'recompute each block in backward',
    ]),
    gatherCap: free('fsdp')(bytes, undefined, [
      '--gather-cap <BYTES>',
      'most bytes of gathered parameters to prefetch into (default: 64 MiB)',
    ]),
    injectDelayMs: free('all')(nonNegative, 0, [
      '--inject-delay-ms <N>',
      'delay every collective, for experiments',
    ]),
    cpuOffload: free('fsdp in memory')(onOff, false, [
      '--cpu-offload',
      'shards, their gradients and optimizer state rest in host memory',
    ]),
  },
  'Offload (--strategy offload):': {
    deviceBudget: told('offload')(bytes, undefined, [
      '--device-budget <BYTES>',
      'most bytes that the device may hold; slices are chosen for it (default: no limit)',
    ]),
    slices: told('offload')(whole(1), undefined, [
      '--slices <N>',
      'without a budget: parts of the model that run apart (default: 3)',
    ]),
    microBatches: told('offload')(whole(1), 1, [
      '--micro-batches <M>',
      'parts of the rows that pass a slice in turn',
    ]),
    offloadDir: free('resting')(file, undefined, [
      '--offload-dir <DIR>',
      'rest on disk there, with fsdp too (default: in host memory)',
    ]),
    fresh: free('offload directory')(onOff, false, [
      '--fresh',
      'delete the state of an earlier run in --offload-dir, and start anew',
    ]),
  },
  'Model and data:': {
    task: fixed('all')(oneOf(TASKS), 'lm', [
      '--task <lm|embed|classify|rerank|dpo|orpo>',
      'what is learnt: to write text; to embed it, by pairs; to label it; to rank documents for a query; or to prefer one answer to another, with adapters (dpo) or the whole model, too (orpo)',
    ]),
    model: fixed('all')(file, DEFAULT_PRESET, [
      '--model <PRESET|DIR|GGUF|ORG/NAME|FILE.mjs>',
      'a preset, a model directory of the Hugging Face layout, a GGUF file (of several the first), a model of the Hub, which @revision may follow, and of GGUF files :TYPE or :FILE, or a module of yours that exports create',
    ]),
    initFrom: told('all')(file, undefined, [
      '--init-from <DIR>',
      'begin with the weights of a save, of a run (its newest save, else its model) or of a model directory, and with nothing else of it: fresh optimizer, step 0, own data and seed. The model is theirs, so --model may be left out; --model DIR alone begins with a model directory, too, and --resume goes on with all of a run',
    ]),
    dropout: fixed('all')(probability, undefined, ['--dropout <P>', "over the model's own"]),
    tokenizer: fixed('all')(oneOf(['model', 'byte', 'gpt2']), undefined, [
      '--tokenizer <model|byte|gpt2>',
      "model: the model's own, of tokenizer.json or the GGUF file (default where it has one; else gpt2 for a vocabulary of 50257 or more, else byte)",
    ]),
    data: fixed('all')(data, undefined, [
      '--data <FILE|DIR|hf:ORG/NAME,...>',
      'texts in UTF-8, or documents, a line of JSON or a row of Parquet, CSV or TSV each, as {"text"}, {"prompt", "completion"} or {"messages"} among others, with dpo and orpo as {"prompt", "chosen", "rejected"}; or data sets of the Hub, which @revision, :config and :split may follow. Several, folders and patterns are all of their files, .gz and .zst too, and with weights a mixture: a.jsonl:0.7,b/*.txt:0.3 (default: the novel Moby Dick)',
    ]),
    valid: told('all')(data, undefined, [
      '--valid <FILE|DIR|hf:ORG/NAME,...>',
      'evaluate on that, in one of these forms',
    ]),
    validFraction: fixed('all')(part, undefined, [
      '--valid-fraction <X>',
      'or on so much of the data, which is not trained on',
    ]),
    evalEvery: told('evaluation')(whole(1), undefined, [
      '--eval-every <N>',
      `steps between evaluations; there is one in the end, too (default: ${DEFAULT_EVAL_EVERY})`,
    ]),
    evalBatches: told('evaluation')(whole(1), undefined, [
      '--eval-batches <N>',
      `batches of an evaluation, the first ones of its data each time (default: ${DEFAULT_EVAL_BATCHES})`,
    ]),
    evalTask: free('conversations')(oneOf(ANSWER_TASKS), undefined, [
      '--eval-task <tools|exact>',
      `let the model answer questions of --valid at each evaluation, and compare its answers with those of the data, as eval --task does; an answer has at most ${MOST_ANSWER_TOKENS} tokens, and not many more than any of the data`,
    ]),
    evalAnswers: free('answers')(whole(1), undefined, [
      '--eval-answers <N>',
      `answers of an evaluation, the first ones of its data each time (default: ${DEFAULT_EVAL_ANSWERS})`,
    ]),
    trainOnPrompt: fixed('documents')(onOff, false, [
      '--train-on-prompt',
      'count prompts and all roles in the loss, not the answers alone',
    ]),
    cache: free('all')(file, undefined, [
      '--cache <DIR>',
      "where tokens of data are kept for later runs (default: SHARDWEAVE_CACHE, or the system's cache directory)",
    ]),
    order: fixed('all')(oneOf(['shuffle', 'sequential']), 'shuffle', [
      '--order <shuffle|sequential>',
      'of the rows',
    ]),
  },
  'Embedding, labels and reranking (--task embed, classify, rerank):': {
    pooling: fixed('embedding')(oneOf(['mean', 'cls', 'last']), undefined, [
      '--pooling <mean|cls|last>',
      "of a text's rows (default: the model's own; else mean, and last of a decoder)",
    ]),
    temperature: fixed('embedding')(positive, 0.05, [
      '--temperature <X>',
      'what cosines are divided by in the loss of pairs',
    ]),
    symmetric: fixed('embedding')(onOff, false, [
      '--symmetric',
      'learn for each document which query is its own, too, as for questions that look alike',
    ]),
    negatives: fixed('ranking')(whole(0), 7, [
      '--negatives <N>',
      'at most so many of the negatives of a line, drawn anew in each epoch',
    ]),
    chunkSize: free('embedding')(whole(1), 64, [
      '--chunk-size <N>',
      'texts that the model gets at once; larger batches take twice its forward, and no more memory',
    ]),
    matryoshkaDims: fixed('embedding')(counts, undefined, [
      '--matryoshka-dims <LIST>',
      'so many first numbers of an embedding are learnt to do alone, such as 384,128,64',
    ]),
    classWeights: fixed('labelling')(oneOf(CLASS_WEIGHTS), 'none', [
      '--class-weights <none|balanced>',
      'of --task classify: balanced lets rare labels count for as much as others',
    ]),
  },
  'Preferences (--task dpo, orpo):': {
    dpoBeta: fixed('reference')(positive, 0.1, [
      '--dpo-beta <X>',
      'of --task dpo: the larger, the closer the model stays to what it was without adapters',
    ]),
    labelSmoothing: fixed('reference')(smoothing, 0, [
      '--label-smoothing <P>',
      'of --task dpo: how likely a pair is the wrong way round, below 0.5',
    ]),
    orpoLambda: fixed('odds')(positive, 0.1, [
      '--orpo-lambda <X>',
      'of --task orpo: what the odds of both answers count beside the loss of the chosen one',
    ]),
  },
  'LoRA (any of these: adapters are trained, the model is frozen):': {
    loraRank: fixed('all')(whole(1), undefined, [
      '--lora-rank <R>',
      `columns of the adapters (default: ${DEFAULT_LORA_RANK})`,
    ]),
    loraAlpha: fixed('all')(positive, undefined, [
      '--lora-alpha <X>',
      'adapters count alpha / rank times (default: twice the rank)',
    ]),
    loraDropout: fixed('all')(probability, undefined, [
      '--lora-dropout <P>',
      'on what goes into them (default: 0)',
    ]),
    loraTargets: fixed('all')(targets, undefined, [
      '--lora-targets <NAMES>',
      'all-linear, or names of layers such as q_proj,v_proj (default: all-linear)',
    ]),
    baseType: fixed('all')(oneOf(BASE_TYPES), undefined, [
      '--base-type <TYPE>',
      `how the frozen model rests, in ${BLOCK_TYPES.join(', ')} blocks or in f32, f16, bf16 (default: what --precision computes in)`,
    ]),
    adapter: free('all')(file, undefined, [
      '--adapter <DIR|ORG/NAME>',
      'go on training the adapters of a PEFT directory',
    ]),
  },
  'Training:': {
    batch: fixed('all')(whole(1), 16, [
      '--batch <B>',
      'rows, or examples of a task, of a step over all ranks and micro-steps; the first ranks take one more',
    ]),
    seq: fixed('all')(whole(1), undefined, [
      '--seq <T>',
      `tokens of a row, and of a task's text (default: the model's positions, at most ${DEFAULT_SEQ_AT_MOST})`,
    ]),
    steps: told('all')(whole(1), undefined, [
      '--steps <S>',
      `optimizer steps (default: ${DEFAULT_STEPS})`,
    ]),
    epochs: free('all')(positive, undefined, [
      '--epochs <N>',
      'or so many that each row of the data is learnt N times; a part is fine, too',
    ]),
    gradAccum: told('all')(whole(1), 1, [
      '--grad-accum <K>',
      'micro-steps of a step, at most as many as a rank has rows',
    ]),
    gradientGroups: fixed('all')(whole(1), undefined, [
      '--gradient-groups <G>',
      'groups of rows of a step, each computed by itself: its bits do not depend on --ranks',
    ]),
    sync: told('micro-steps')(onOff, true, [
      '--no-sync',
      'with K > 1, reduce gradients on the last micro-step alone',
    ]),
    lr: told('all')(nonNegative, undefined, [
      '--lr <X>',
      `peak learning rate (default: ${DEFAULT_LR.small}, ${DEFAULT_LR.large} from 10 M parameters on, and ${DEFAULT_LR.tuned} of a trained model with another task than lm)`,
    ]),
    weightDecay: told('all')(nonNegative, 0.1, [
      '--weight-decay <X>',
      'of AdamW, on tensors of two or more dimensions',
    ]),
    beta1: told('all')(probability, 0.9, ['--beta1 <X>', '']),
    beta2: told('all')(probability, 0.98, ['--beta2 <X>', '']),
    eps: told('all')(nonNegative, 1e-8, ['--eps <X>', '']),
    clip: told('all')(nonNegative, 1, ['--clip <NORM>', 'largest gradient norm, 0: off']),
    schedule: told('all')(oneOf(['constant', 'cosine', 'wsd']), 'cosine', [
      '--schedule <constant|cosine|wsd>',
      'of the learning rate; wsd: warm-up, stable, decay by a line',
    ]),
    minLr: told('falling rate')(nonNegative, 0, [
      '--min-lr <X>',
      'learning rate that cosine and wsd end with',
    ]),
    warmup: told('all')(whole(0), undefined, [
      '--warmup <W>',
      `steps of linear warm-up (default: ${DEFAULT_WARMUP.most}, at most ${DEFAULT_WARMUP.part} of the run, with constant 0)`,
    ]),
    decaySteps: told('wsd')(countOrPart, undefined, [
      '--decay-steps <N|X>',
      `steps of decay that wsd ends with, or what part of all (default: ${DEFAULT_DECAY})`,
    ]),
    patience: told('evaluation')(whole(1), undefined, [
      '--patience <N>',
      'end after so many evaluations in a row without a lower loss',
    ]),
    final: told('out')(oneOf(['best', 'last']), undefined, [
      '--final <best|last>',
      'the weights that become model/: of the best evaluation, or of the last step (default: last, with --patience best)',
    ]),
    timeLimit: free('all')(duration, undefined, [
      '--time-limit <TIME>',
      'end with the step at which steps have taken so long: 90s, 30m or 2h',
    ]),
    seed: fixed('all')(whole(0), 1, ['--seed <N>', 'of weights, order and dropout']),
  },
  'Saves:': {
    saveEvery: free('out')(saveEvery, undefined, [
      '--save-every <N|Nm>',
      'save all that the run needs to go on under --out, every N steps or minutes and in the end; Ctrl-C saves without it, too',
    ]),
    keep: free('saves')(whole(1), undefined, [
      '--keep <N>',
      `newest saves that are kept, beside the best by what is evaluated (default: ${DEFAULT_KEEP})`,
    ]),
    resume: free('all')(file, undefined, [
      '--resume <auto|DIR>',
      'go on from the newest save under --out, or from one that is given; steps, ranks, strategy and device may be others',
    ]),
    maxRestarts: free('saves')(whole(0), 0, [
      '--max-restarts <N>',
      'start again from the last save after a rank died, at most N times',
    ]),
  },
  'Output:': {
    out: free('all')(file, undefined, [
      '--out <DIR>',
      'write metrics.jsonl, summary.json, report.html and model/ there, among others',
    ]),
    dashboard: free('all')(port, undefined, [
      '--dashboard [PORT]',
      `show the run on a page of this machine, whose address is printed (default port: ${DASHBOARD_PORT})`,
    ]),
    check: free('all')(onOff, false, [
      '--check',
      'at the end, print what plan says of the run beside what it took; summary.json has both by tag',
    ]),
    logEvery: free('all')(whole(1), undefined, [
      '--log-every <N>',
      'a line every N steps, and of the first, the last and evaluated ones, here and in metrics.jsonl (default: all; here at most two a second, after a minute one in ten)',
    ]),
    hashEvery: free('all')(whole(1), undefined, [
      '--hash-every <N>',
      'a SHA-256 of all weights and optimizer state after every N steps and the last one, in metrics.jsonl and in saves: one hash however many ranks hold them (default: none)',
    ]),
    sampleEvery: free('text')(whole(1), undefined, [
      '--sample-every <N>',
      'let the model write a text every N steps, kept in events.jsonl',
    ]),
    samplePrompt: free('text')(filledText, undefined, [
      '--sample-prompt <TEXT>',
      'what these texts and the one at the end begin with',
    ]),
    tensorboard: free('out')(onOff, false, [
      '--tensorboard',
      "write TensorBoard's event files to --out, too",
    ]),
    onStep: free('all')(filledText, undefined, [
      '--on-step <CMD>',
      'a shell command that gets each record as a line of JSON',
    ]),
    quiet: free('all')(onOff, false, ['--quiet', 'print nothing but errors']),
  },
};

/** Every flag, by its name in camelCase. */
export const FLAGS = {
  ...GROUPS['Where it runs:'],
  ...GROUPS['Precision and sharding:'],
  ...GROUPS['Offload (--strategy offload):'],
  ...GROUPS['Model and data:'],
  ...GROUPS['Embedding, labels and reranking (--task embed, classify, rerank):'],
  ...GROUPS['Preferences (--task dpo, orpo):'],
  ...GROUPS['LoRA (any of these: adapters are trained, the model is frozen):'],
  ...GROUPS['Training:'],
  ...GROUPS['Saves:'],
  ...GROUPS['Output:'],
};

/** The values of all flags, each checked by itself. */
export type Flags = ValuesOf<typeof FLAGS>;

/** The flags each of which asks for adapters. */
export const ADAPTER_FLAGS = [
  'adapter',
  'loraRank',
  'loraAlpha',
  'loraDropout',
  'loraTargets',
  'baseType',
] as const;

export function isAdapted(flags: Pick<Flags, (typeof ADAPTER_FLAGS)[number]>): boolean {
  return ADAPTER_FLAGS.some((name) => flags[name] !== undefined);
}

/** The flags that few need. */
export const RARE: readonly (keyof Flags)[] = [
  ...(['fp32Reduce', 'reshard', 'gatherCap', 'injectDelayMs', 'slices', 'microBatches'] as const),
  ...(['beta1', 'beta2', 'eps'] as const),
];

/** The names of all flags, in the order of --help. */
export const FLAG_NAMES = Object.keys(FLAGS) as (keyof Flags)[];
