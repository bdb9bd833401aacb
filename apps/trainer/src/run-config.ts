// One run, fully resolved: what the flags mean once defaults, presets and files are known. It is
// plain data, because it travels to rank processes as JSON.

import type { ModelConfig } from '@shardweave/nn';
import type { DeviceChoice } from './device-choice.js';

/** The ways to train, in the order in which `plan` shows them. */
export const STRATEGIES = ['single', 'fsdp', 'ddp', 'offload'] as const;
export type StrategyName = (typeof STRATEGIES)[number];
export type Transport = 'memory' | 'shm' | 'ws' | 'mpi';
export type Precision = 'fp32' | 'fp16' | 'bf16';
export type TokenizerName = 'model' | 'byte' | 'gpt2';
export type Order = 'shuffle' | 'sequential';
export type Schedule = 'constant' | 'cosine' | 'wsd';

/** A preset's name, or the directory of a `config.json` and perhaps of weights. */
export type ModelSource =
  | { readonly kind: 'preset'; readonly name: string }
  | { readonly kind: 'directory'; readonly path: string; readonly hasWeights: boolean };

/** The directories with the tokens of a run; see data/token-file.ts. */
export interface TokenFiles {
  readonly train: string;
  readonly valid: string | undefined;
}

/** A run whose data has been tokenized. */
export interface PreparedRun extends RunConfig {
  readonly tokens: TokenFiles;
}

/** The options of applyLora, and the source of the adapters' values. */
export interface LoraRun {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  readonly targets: 'all-linear' | readonly string[];
  /** A PEFT directory whose training goes on; undefined for new adapters. */
  readonly directory: string | undefined;
}

/** Whether anybody may watch the steps of all ranks, now or later. */
export function isWatched(config: Pick<RunConfig, 'outDir' | 'dashboardPort'>): boolean {
  return config.outDir !== undefined || config.dashboardPort !== undefined;
}

/** The steps whose weights a run may leave. */
export const FINALS = ['best', 'last'] as const;

/** Whether a run makes saves: where it was told to, and where its end goes back to the best one. */
export function makesSaves({ saveEvery, final }: Pick<RunConfig, 'saveEvery' | 'final'>): boolean {
  return saveEvery !== undefined || final === 'best';
}

/** The interval between saves, in one of the two units. */
export interface SaveEvery {
  readonly steps?: number;
  readonly minutes?: number;
}

export interface RunConfig {
  readonly strategy: StrategyName;
  readonly ranks: number;
  readonly transport: Transport;
  /** The device of each rank, as it was asked for. */
  readonly devices: readonly DeviceChoice[];
  readonly precision: Precision;
  readonly fp32Reduce: boolean;
  /** The threads of one rank's cpu device. */
  readonly threads: number;
  readonly reshard: boolean;
  readonly checkpointActivations: boolean;
  readonly gatherCapBytes: number | undefined;
  /**
   * With offload: the most bytes on the device, or without it the number of slices of the model.
   */
  readonly deviceBudgetBytes: number | undefined;
  readonly slices: number | undefined;
  readonly microBatches: number;
  /** Whether shards and their state rest in host memory (fsdp). */
  readonly cpuOffload: boolean;
  /**
   * The directory where parameters rest with offload and fsdp; undefined where they are not on
   * disk.
   */
  readonly offloadDir: string | undefined;
  /** Whether what an earlier run left there is deleted rather than refused. */
  readonly isFresh: boolean;
  /** How often the run is saved under --out; undefined for never. */
  readonly saveEvery: SaveEvery | undefined;
  /** The weights that become model/ or adapter/: those of the best evaluation, or the last ones. */
  readonly final: (typeof FINALS)[number];
  /** The number of the newest saves that are kept. */
  readonly keep: number;
  /**
   * What the run goes on from: the newest save under --out, or that of a directory; undefined for a
   * new run.
   */
  readonly resume: string | undefined;
  /** How often the job may start again from its last save after a rank died. */
  readonly maxRestarts: number;
  readonly injectDelayMs: number;
  readonly traceFile: string | undefined;

  readonly model: ModelSource;
  /**
   * The adapters that are trained instead of the model; undefined where all of the model is
   * trained.
   */
  readonly lora: LoraRun | undefined;
  /** The model's configuration, with --dropout applied. */
  readonly modelConfig: ModelConfig;
  readonly tokenizer: TokenizerName;
  readonly dataFile: string | undefined;
  readonly order: Order;
  /** What is evaluated: a file, or a part of the data; at most one of the two. */
  readonly validFile: string | undefined;
  readonly validFraction: number | undefined;
  /**
   * The number of steps from one evaluation to the next; the last step is always followed by one.
   */
  readonly evalEvery: number;
  /** The most batches of an evaluation, which are the first ones of its data. */
  readonly evalBatches: number;
  /** Whether prompts, and messages of others than the assistant, count in the loss. */
  readonly trainOnPrompt: boolean;
  /** The directory where tokens are kept for later runs. */
  readonly cacheDir: string;

  /** The rows of one optimizer step over all ranks and micro-steps. */
  readonly batch: number;
  readonly seq: number;
  readonly steps: number;
  readonly gradAccum: number;
  readonly noSync: boolean;
  readonly lr: number;
  readonly weightDecay: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  /** The largest gradient norm; 0 means no clipping. */
  readonly clip: number;
  readonly schedule: Schedule;
  readonly warmup: number;
  /** The number of steps of decay at the end of wsd; undefined for other schedules. */
  readonly decaySteps: number | undefined;
  /** The number of evaluations in a row without a lower loss after which the run ends. */
  readonly patience: number | undefined;
  /** The training time in ms after which the present step is the last one. */
  readonly timeLimitMs: number | undefined;

  readonly seed: number;
  readonly outDir: string | undefined;
  /** The port of the page that shows the run; undefined where there is no page. */
  readonly dashboardPort: number | 'default' | undefined;
  readonly isQuiet: boolean;
  /** Whether the end shows what was planned beside what was taken. */
  readonly isChecked: boolean;
}
