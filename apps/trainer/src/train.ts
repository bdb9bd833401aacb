// The trainer for programs: the run of the command `train` with a configuration in place of flags
// and calls in place of printed lines. It takes no signals, prints nothing and never ends the
// process.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { shown } from '@shardweave/tensor-core/options';
import { withLocalFiles } from './commands/define-command.js';
import { TRAIN } from './config/flags.js';
import { resolveConfig } from './config/resolve-config.js';
import { runWarnings } from './config/run-warnings.js';
import type { DeviceChoice } from './device-choice.js';
import { SignalError, TrainerError, UsageError } from './errors.js';
import { resultOf } from './files/run-files.js';
import { type FlagTable, keyOf, withDefaults } from './flags/flag.js';
import { checkValue } from './flags/flag-kinds.js';
import { ownName } from './flags/foreign-names.js';
import { FLAGS, type Flags } from './flags/train-flags.js';
import { Interrupt } from './interrupt.js';
import { type Led, leadRun } from './lead-run.js';
import { nearest } from './nearest.js';
import type { RunListener } from './output/run-recorder.js';
import type { RunRecord, StepLine } from './output/run-records.js';
import { Terminal } from './output/terminal.js';
import type { Best, SaveWritten } from './rank/events.js';
import type { RunConfig } from './run-config.js';
import type { EndWhy } from './run-end.js';

/** What is given in another form than the run has it. */
interface Written {
  /** A device for all ranks, or a list by rank. */
  readonly device?: DeviceChoice | readonly DeviceChoice[] | undefined;
  /** Bytes, or a text such as `64MB`. */
  readonly gatherCap?: number | string | undefined;
  /** Bytes, or a text such as `8GiB`. */
  readonly deviceBudget?: number | string | undefined;
  /** A time such as `90s`, `30m` or `2h`. */
  readonly timeLimit?: `${number}${'s' | 'm' | 'h'}` | undefined;
  /** A number of steps, or of minutes such as `5m`. */
  readonly saveEvery?: number | `${number}m` | undefined;
}

/** The command's script, which ranks and probes run; sources are not beside it, and do without. */
const SCRIPT = fileURLToPath(new URL('./main.js', import.meta.url));
const ENTRY = existsSync(SCRIPT) ? SCRIPT : '';

/** What is for people at a terminal. */
const OF_TERMINALS: readonly string[] = ['dashboard', 'quiet'];
type OfTerminals = 'dashboard' | 'quiet';

/**
 * The flags of `shardweave train` in camelCase, such as `saveEvery` for --save-every: the same
 * values, defaults and rules. Paths are relative to the working directory.
 */
export type TrainConfig = {
  readonly [Name in Exclude<keyof Flags, keyof Written | OfTerminals>]?: Flags[Name] | undefined;
} & Written & {
    /** A YAML or JSON file of flags, such as the config.yaml of a run; fields here count before. */
    readonly config?: string | undefined;
  };

/** A step as metrics.jsonl has it; a loss is null where no target counted. */
export type TrainedStep = StepLine;

/** An evaluation. */
export interface Evaluation {
  /** The number of steps before it. */
  readonly step: number;
  readonly validLoss: number;
  /** What a task is judged by beside the loss, such as accuracy or ndcg@10. */
  readonly figures?: Readonly<Record<string, number>> | undefined;
}

/** A text that the model wrote. */
export interface Sample {
  readonly step: number;
  readonly prompt: string;
  /** What follows the prompt. */
  readonly text: string;
}

/** What one of the calls throws ends the run, and `train` rejects with it. */
export interface TrainOptions {
  readonly onStep?: (step: TrainedStep) => void;
  readonly onEval?: (evaluation: Evaluation) => void;
  /** Called with texts; without it none is written at the end. See `sampleEvery`. */
  readonly onSample?: (sample: Sample) => void;
  /** Called once a save is whole and on the disk. */
  readonly onSave?: (save: SaveWritten) => void;
  /** Called with what people should know and what ends nothing, each text once. */
  readonly onWarning?: (text: string) => void;
  /** Called with every record, as metrics.jsonl and events.jsonl have them. */
  readonly onRecord?: (record: RunRecord) => void;
  /**
   * Ends the run. With `out` the step on its way is done and saved first. `train` then
   * rejects with the signal's reason; `resume: 'auto'` goes on.
   */
  readonly signal?: AbortSignal;
  /** What `HF_HOME` and others say. Default: process.env. */
  readonly env?: NodeJS.ProcessEnv;
}

/** What a run came to. */
export interface TrainResult {
  /** Why it ended: after its last step, out of patience, or when its time was over. */
  readonly why: Extract<EndWhy, 'done' | 'patience' | 'time'>;
  /** The number of its last step. */
  readonly step: number;
  /**
   * The mean loss of the weights that are left: on the data that the run evaluates, or else on the
   * rows that a further step would take. It is not the loss of the last step, which is that of the
   * weights before its update.
   */
  readonly loss: number | undefined;
  /** The best evaluation; undefined where nothing is evaluated. */
  readonly best: Best | undefined;
  /** The directory of the model, or of its adapters; undefined without `out`. */
  readonly directory: string | undefined;
}

/**
 * Trains as `shardweave train` does, in this process or, over shm and ws, in threads and processes
 * that end with it.
 *
 * @example
 * const { directory } = await train(
 *   { model: 'micro', data: 'my.txt', steps: 200, out: 'runs/first', saveEvery: 50 },
 *   { onStep: ({ step, loss }) => console.log(step, loss) },
 * );
 *
 * @throws {UsageError} for a configuration, a file or an `out` that can't be used as asked; nothing
 * has been trained
 * @throws {DivergedError} where the loss is no number any more
 * @throws {RankFailedError} where a rank ended before its work was done
 * @throws {DiskFullError} where a disk has no room for what the run leaves
 * @throws what the signal has as its reason, and what a call threw
 */
export async function train(
  config: TrainConfig = {},
  options: TrainOptions = {},
): Promise<TrainResult> {
  const { signal, env = process.env } = options;
  requireCalls(options);
  signal?.throwIfAborted();
  const interrupt = new Interrupt({ exit: () => {} });
  const stop = () => interrupt.ask(new SignalError('SIGTERM', 'its signal'));
  signal?.addEventListener('abort', stop, { once: true });
  let thrown: { readonly error: unknown } | undefined;
  const listener = listenerOf(options, (error) => {
    thrown ??= { error };
    interrupt.ask(new SignalError('SIGTERM', 'a call that threw'));
  });
  try {
    const nowhere = new Writable({ write: (_chunk, _encoding, done) => done() });
    const streams = { out: nowhere, err: nowhere, env, listen: () => interrupt };
    const flags = await withLocalFiles(flagsOf(config, options), TRAIN.model, streams);
    const run = await resolveConfig(flags, { entry: ENTRY, signal: interrupt.signal });
    const led = await leadRun(run, {
      entry: ENTRY,
      env,
      terminal: new Terminal({ out: nowhere, err: nowhere, env, steps: run.steps, isQuiet: true }),
      interrupt,
      isFirst: true,
      warnings: runWarnings(flags, run),
      listeners: [listener],
    });
    if (led.end.kind === 'done') {
      return resultFrom(run, led);
    }
    throw led.error ?? new TrainerError(led.end.failure);
  } catch (error) {
    if (thrown !== undefined) {
      throw thrown.error;
    }
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener('abort', stop);
  }
}

/**
 * The values of all flags.
 * @throws {UsageError} for a field that no flag has, or a value that its flag doesn't take
 */
function flagsOf(config: TrainConfig, { onSample }: TrainOptions): Flags {
  const given = Object.entries(config).filter(([, value]) => value !== undefined);
  const read = given.map(([name, value]) => {
    const flag = (TRAIN.flags as FlagTable)[name];
    if (flag === undefined || OF_TERMINALS.includes(name)) {
      const names = Object.keys(FLAGS).filter((own) => !OF_TERMINALS.includes(own));
      const foreign = ownName(
        keyOf(name),
        names.map((own) => `--${keyOf(own)}`),
      );
      const meant = names.find((own) => `--${keyOf(own)}` === foreign) ?? nearest(name, names);
      const hint = meant === undefined ? '' : ` Did you mean ${meant}?`;
      throw new UsageError(
        `train: there is no field ${name}.${hint} Fields are flags in camelCase.`,
      );
    }
    const checked = checkValue(flag.kind, value, JSON.stringify(value) ?? String(value));
    if (checked.problem !== undefined) {
      throw new UsageError(`train: ${name}: ${checked.problem}`);
    }
    return [name, checked.value];
  });
  const flags = withDefaults(FLAGS, TRAIN.complete(Object.fromEntries(read)));
  if (flags.transport === 'mpi') {
    throw new UsageError(
      'train: transport mpi starts with the command. Use memory, shm or ws, or start shardweave train by mpirun.',
    );
  }
  return { ...flags, quiet: onSample === undefined };
}

/** The names of all options: a call of another name would never be called, in silence. */
const OPTIONS: Readonly<Record<keyof TrainOptions, true>> = {
  ...{ onStep: true, onEval: true, onSample: true, onSave: true, onWarning: true, onRecord: true },
  ...{ signal: true, env: true },
};

/** @throws {UsageError} for an option that there is not, and a call that is no function */
function requireCalls(options: TrainOptions): void {
  const names = Object.keys(OPTIONS);
  for (const [name, given] of Object.entries(options)) {
    if (!names.includes(name)) {
      const meant = nearest(name, names);
      const hint = meant === undefined ? '' : ` Did you mean ${meant}?`;
      throw new UsageError(
        `train: there is no option ${name}.${hint} Options are ${names.join(', ')}.`,
      );
    }
    if (name.startsWith('on') && given !== undefined && typeof given !== 'function') {
      throw new UsageError(`train: ${name}: expected a function, got ${shown(given)}.`);
    }
  }
}

/** Passes records on to the calls, until one of them throws. */
function listenerOf(options: TrainOptions, onThrow: (error: unknown) => void): RunListener {
  let hasThrown = false;
  const onRecord = (record: RunRecord) => {
    try {
      if (!hasThrown) {
        pass(record, options);
      }
    } catch (error) {
      hasThrown = true;
      onThrow(error);
    }
  };
  return { onRecord };
}

function pass(record: RunRecord, options: TrainOptions): void {
  options.onRecord?.(record);
  if (record.type === 'step') {
    const { type: _, ...line } = record;
    const { step, validLoss, figures } = line;
    options.onStep?.(line);
    if (validLoss !== undefined) {
      options.onEval?.({ step, validLoss, figures });
    }
  } else if (record.type === 'sample') {
    const { step, prompt, text } = record;
    options.onSample?.({ step, prompt, text });
  } else if (record.type === 'save') {
    const { type: _, atMs: __, ...save } = record;
    options.onSave?.(save);
  } else if (record.type === 'warning') {
    options.onWarning?.(record.text);
  }
}

function resultFrom(config: RunConfig, { end, step, final }: Led): TrainResult {
  return {
    why: end.why as TrainResult['why'],
    step,
    loss: final?.loss,
    best: final?.best,
    directory: config.out && join(config.out, resultOf(config)),
  };
}
