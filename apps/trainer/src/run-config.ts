// One run, fully resolved: what the flags mean once defaults, presets and files are known. It is
// plain data, because it travels to rank processes as JSON.

import type { MatmulChoiceTable } from '@shardweave/tensor-core/webgpu';
import type { DeviceChoice } from './device-choice.js';
import type { Flags } from './flags/train-flags.js';
import { hubNameOf } from './hub/hub-name.js';
import type { TrainedHead } from './task/task-head.js';
import type { TrainedConfig } from './task/text-config.js';

export type StrategyName = Flags['strategy'];
export type Precision = Flags['precision'];
export type BaseType = NonNullable<Flags['baseType']>;
export type TokenizerName = NonNullable<Flags['tokenizer']>;
export type Order = Flags['order'];

/** The dtype of products for each precision. */
export const COMPUTE_DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' } as const;

/**
 * A preset's name, or the directory of a `config.json` and perhaps of weights, or a GGUF file, or a
 * module that people write, with the hash of its text.
 */
export type ModelSource =
  | { readonly kind: 'preset'; readonly name: string }
  | { readonly kind: 'directory'; readonly path: string; readonly hasWeights: boolean }
  | ModuleSource;

export interface ModuleSource {
  readonly kind: 'module';
  readonly path: string;
  readonly sha256: string;
}

/** The tokens of data, or of a part of a mixture; see data/token-file.ts. */
export interface TokenPart {
  readonly directory: string;
  /** The data's name; undefined for the novel. */
  readonly name: string | undefined;
  /** Its part of all rows, from 0 to 1. */
  readonly share: number;
}

/** The tokens of a run: one part, or those of a mixture in the order in which they were named. */
export interface TokenFiles {
  readonly train: readonly TokenPart[];
  readonly valid: readonly TokenPart[] | undefined;
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
  /** How the base rests; undefined: in the dtype of computation. */
  readonly baseType?: BaseType | undefined;
  /** A PEFT directory whose training goes on; undefined for new adapters. */
  readonly directory: string | undefined;
}

/** What flags and files decide together. */
interface Decided {
  readonly ranks: number;
  /** The device of each rank, as it was asked for. */
  readonly device: readonly DeviceChoice[];
  /** The threads of one rank's cpu device. */
  readonly threads: number;
  readonly model: ModelSource;
  /** The model's configuration, with --dropout applied. */
  readonly modelConfig: TrainedConfig;
  /** The save that a new run takes its weights of, with --init-from; see saves/first-weights.ts. */
  readonly firstSave?: string | undefined;
  /** What the task puts on the model. */
  readonly head: TrainedHead;
  /**
   * The adapters that are trained instead of the model; undefined where all of the model is
   * trained.
   */
  readonly lora: LoraRun | undefined;
  readonly tokenizer: TokenizerName;
  readonly evalEvery: number;
  readonly evalBatches: number;
  readonly cache: string;
  readonly seq: number;
  readonly steps: number;
  readonly lr: number;
  readonly warmup: number;
  readonly final: NonNullable<Flags['final']>;
  readonly keep: number;
  /** Present where steps of a run are computed again. */
  readonly again?: Again | undefined;
}

/** What a run does otherwise whose steps are computed again, to be compared with its record. */
export interface Again {
  /** The last step that is computed, with a save after it where the run has an --out. */
  readonly until: number;
  /** The steps after which the state is hashed. */
  readonly hashAt: readonly number[];
  /** The step before which each of its rows is computed alone; default: none is. */
  readonly rowsOf?: number | undefined;
  /** The tokens that the run had. */
  readonly tokens: TokenFiles;
  /** The tiles of the run's GPUs; see SavedRun. */
  readonly tiles?: Readonly<Record<string, MatmulChoiceTable>> | undefined;
}

/** The flags that `lora`, `steps` and `head` have in them. */
type Merged =
  | 'loraRank'
  | 'loraAlpha'
  | 'loraDropout'
  | 'loraTargets'
  | 'baseType'
  | 'adapter'
  | 'epochs'
  | 'pooling';

/** All flags of a run, by their names; paths are absolute. */
export interface RunConfig extends Omit<Flags, keyof Decided | Merged>, Decided {}

/** The values of a run's flags as they were decided; a model's is its name or directory. */
export function decidedFlags(
  config: Partial<RunConfig>,
): Readonly<Partial<Record<keyof Flags, unknown>>> {
  const { model, lora, modelConfig, head, firstSave: _, again: __, ...kept } = config;
  return {
    ...kept,
    model: model?.kind === 'preset' ? model.name : model && (hubNameOf(model.path) ?? model.path),
    loraRank: lora?.rank,
    loraAlpha: lora?.alpha,
    loraDropout: lora?.dropout,
    loraTargets: lora?.targets,
    baseType: lora?.baseType,
    pooling: head?.kind === 'embed' ? head.pooling : undefined,
    adapter: lora?.directory && (hubNameOf(lora.directory) ?? lora.directory),
  };
}

/** Whether ranks may be lost and come without an end of the job. */
export function isElastic(config: RunConfig): boolean {
  const { elastic, lora, again } = config;
  return elastic && isHeldByAll(config, lora !== undefined) && again === undefined;
}

/** Whether each rank has all that is trained: with ddp, or as adapters beside what fsdp shards. */
export function isHeldByAll(
  flags: Pick<Flags, 'strategy' | 'task' | 'cpuOffload' | 'offloadDir'>,
  isAdapted: boolean,
): boolean {
  const { strategy, task, cpuOffload, offloadDir } = flags;
  const isOffDevice = cpuOffload || offloadDir !== undefined;
  const isBaseAlone = strategy === 'fsdp' && isAdapted && task === 'lm' && !isOffDevice;
  return strategy === 'ddp' || isBaseAlone;
}

/** Whether anybody may watch the steps of all ranks, now or later. */
export function isWatched({ out, dashboard }: Pick<RunConfig, 'out' | 'dashboard'>): boolean {
  return out !== undefined || dashboard !== undefined;
}

/**
 * Whether a run makes saves while nobody asks it to end: where it was told to, and where its end
 * goes back to the best one.
 */
export function makesSaves({ saveEvery, final }: Pick<RunConfig, 'saveEvery' | 'final'>): boolean {
  return saveEvery !== undefined || final === 'best';
}

/**
 * Whether a run saves when it is asked to end. Under mpirun one signal tells of Ctrl-C and of a
 * lost rank alike, and no save is worth the wait for a rank that is gone: there it has to be told.
 */
export function savesAtStop({
  out,
  saveEvery,
  transport,
}: Pick<RunConfig, 'out' | 'saveEvery' | 'transport'>): boolean {
  return out !== undefined && (saveEvery !== undefined || transport !== 'mpi');
}
