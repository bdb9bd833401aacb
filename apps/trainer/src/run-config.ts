// One run, fully resolved: what the flags mean once defaults, presets and files are known. Plain
// data, since it travels to rank processes as JSON.

import type { ModelConfig } from '@shardweave/nn';

/** The ways to train, in the order in which `plan` shows them. */
export const STRATEGIES = ['single', 'fsdp', 'ddp', 'offload'] as const;
export type StrategyName = (typeof STRATEGIES)[number];
export type Transport = 'memory' | 'shm' | 'ws' | 'mpi';
export type DeviceChoice = 'auto' | 'cpu' | 'webgpu';
export type Precision = 'fp32' | 'fp16' | 'bf16';
export type TokenizerName = 'model' | 'byte' | 'gpt2';
export type Order = 'shuffle' | 'sequential';
export type Schedule = 'constant' | 'cosine' | 'wsd';

/** A preset's name, or the directory of `config.json` and perhaps of weights. */
export type ModelSource =
  | { readonly kind: 'preset'; readonly name: string }
  | { readonly kind: 'directory'; readonly path: string; readonly hasWeights: boolean };

/** Where the tokens of a run are; see data/token-file.ts. */
export interface TokenFiles {
  readonly train: string;
  readonly valid: string | undefined;
}

/** A run whose data has been made tokens. */
export interface PreparedRun extends RunConfig {
  readonly tokens: TokenFiles;
}

/** What applyLora gets, and where the adapters' values come from. */
export interface LoraRun {
  readonly rank: number;
  readonly alpha: number;
  readonly dropout: number;
  readonly targets: 'all-linear' | readonly string[];
  /** A PEFT directory whose training goes on; undefined: new adapters. */
  readonly directory: string | undefined;
}

/** Whether anybody will look at the steps of all ranks, at once or later. */
export function isWatched(config: Pick<RunConfig, 'outDir' | 'dashboardPort'>): boolean {
  return config.outDir !== undefined || config.dashboardPort !== undefined;
}

/** One of both. */
export interface SaveEvery {
  readonly steps?: number;
  readonly minutes?: number;
}

export interface RunConfig {
  readonly strategy: StrategyName;
  readonly ranks: number;
  readonly transport: Transport;
  /** By rank. */
  readonly devices: readonly DeviceChoice[];
  readonly precision: Precision;
  readonly fp32Reduce: boolean;
  /** Threads of one rank's cpu device. */
  readonly threads: number;
  readonly reshard: boolean;
  readonly checkpointActivations: boolean;
  readonly gatherCapBytes: number | undefined;
  /** With offload: most bytes on the device, and how the model is cut without. */
  readonly deviceBudgetBytes: number | undefined;
  readonly slices: number | undefined;
  readonly microBatches: number;
  /** Shards and their state rest in host memory (fsdp). */
  readonly cpuOffload: boolean;
  /** Where parameters rest on disk, with offload and fsdp; undefined: not on disk. */
  readonly offloadDir: string | undefined;
  /** Whether what an earlier run left there is deleted; else it is refused. */
  readonly isFresh: boolean;
  /** How often the run is saved under --out; undefined: never. */
  readonly saveEvery: SaveEvery | undefined;
  /** How many of the newest saves are kept. */
  readonly keep: number;
  /**
   * What the run goes on from: the newest save under --out, or that of a directory; undefined: it
   * is new.
   */
  readonly resume: string | undefined;
  /** How often the job is started again from its last save after a rank died. */
  readonly maxRestarts: number;
  readonly injectDelayMs: number;
  readonly traceFile: string | undefined;

  readonly model: ModelSource;
  /** The adapters that are trained in the place of the model; undefined: all of it is trained. */
  readonly lora: LoraRun | undefined;
  /** The model's configuration, with --dropout applied. */
  readonly modelConfig: ModelConfig;
  readonly tokenizer: TokenizerName;
  readonly dataFile: string | undefined;
  readonly order: Order;
  /** What is evaluated: a file, or a part of the data; at most one of them. */
  readonly validFile: string | undefined;
  readonly validFraction: number | undefined;
  /** Steps from one evaluation to the next; the last step is followed by one. */
  readonly evalEvery: number;
  /** Whether prompts and what others than the assistant say count in the loss. */
  readonly trainOnPrompt: boolean;
  /** Where tokens are kept for later runs. */
  readonly cacheDir: string;

  /** Rows of one optimizer step over all ranks and micro-steps. */
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
  /** Largest gradient norm; 0: no clipping. */
  readonly clip: number;
  readonly schedule: Schedule;
  readonly warmup: number;
  /** The steps of decay that wsd ends with; undefined for other schedules. */
  readonly decaySteps: number | undefined;
  /** Evaluations in a row without a lower loss that end the run. */
  readonly patience: number | undefined;
  /** The step at which training has lasted so long is the last. */
  readonly timeLimitMs: number | undefined;

  readonly seed: number;
  readonly outDir: string | undefined;
  /** The port of the page that shows the run; undefined: there is none. */
  readonly dashboardPort: number | 'default' | undefined;
  readonly isQuiet: boolean;
  /** Whether what was planned is told beside what was taken, at the end. */
  readonly isChecked: boolean;
}
