// What a directory holds: a save, a run with its saves, adapters or a model, which may be a GGUF
// file too. Indexes and headers are read, but no values.

import { existsSync, readdirSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import {
  INDEX_FILE,
  labelOf,
  openSave,
  type Save,
  type SavedTensor,
  type WantedPiece,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import type { LazyTensor, LoraConfig } from '@shardweave/nn';
import { byteSize } from '@shardweave/tensor-core';
import { TrainerError, UsageError } from '../errors.js';
import { isGgufFile, withGgufModel } from '../files/gguf-model.js';
import { findSaves, isDamage, savesOf } from '../files/save-directory.js';
import {
  ADAPTER_FILES,
  findAdapter,
  readAdapter,
  withAdapterState,
} from '../model/adapter-directory.js';
import { readModelKind, withEncoder } from '../model/encoder-directory.js';
import { explainModel, findModelDirectory } from '../model/model-directory.js';
import {
  configFor,
  readTextModel,
  type TextModel,
  usualTask,
  withTaskState,
} from '../model/text-model.js';
import type { SavedRun } from '../saves/saved-run.js';
import { resolveHead } from '../task/task-head.js';
import { countParameters, isEncoder, type TrainedConfig } from '../task/text-config.js';

export interface TensorRow {
  readonly name: string;
  /** 'state' is an optimizer's, for the parameter of that name: `expAvg of wte.weight`. */
  readonly kind: SavedTensor['kind'];
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: number;
}

interface ModelFacts {
  readonly family: TrainedConfig['model_type'];
  readonly parameters: number;
  readonly config: TrainedConfig;
}

export interface SaveHolding {
  readonly kind: 'save';
  readonly path: string;
  /** undefined for a save that no run made. */
  readonly model: ModelFacts | undefined;
  readonly run: SavedRun | undefined;
  /** The number of ranks that wrote pieces. */
  readonly writers: number;
  readonly optimizer: { readonly kind: string; readonly parameters: number } | undefined;
  readonly files: Readonly<Record<string, number>>;
  /** The bytes of all files of pieces together. */
  readonly bytes: number;
  readonly tensors: readonly TensorRow[];
}

export interface RunHolding {
  readonly kind: 'run';
  readonly path: string;
  /** The saves, the newest first. */
  readonly saves: readonly (SaveHolding | { readonly path: string; readonly problem: string })[];
}

export interface AdapterHolding {
  readonly kind: 'adapter';
  readonly path: string;
  readonly lora: LoraConfig;
  readonly tensors: readonly TensorRow[];
}

export interface ModelHolding {
  readonly kind: 'model';
  readonly path: string;
  readonly model: ModelFacts;
  /** Empty where there is a config without weights. */
  readonly tensors: readonly TensorRow[];
}

export type Holding = SaveHolding | RunHolding | AdapterHolding | ModelHolding;

/**
 * What the directory or the GGUF file `given` holds.
 * @throws {UsageError} where it is neither, or holds something else
 * @throws {TrainerError} for a save whose index is damaged
 */
export async function readHolding(given: string): Promise<Holding> {
  const path = resolve(given);
  if (isGgufFile(path)) {
    return explainFlags(() => explainModel(path, () => ggufHolding(path)));
  }
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) {
    throw new UsageError(`${given} is no directory. ${EXPECTED}`);
  }
  if (existsSync(join(path, INDEX_FILE))) {
    return explainDamage(async () => saveHolding(path, await openSave(pieceDirectory(path))));
  }
  if (existsSync(savesOf(path))) {
    const found = await findSaves(savesOf(path));
    const saves = await Promise.all(
      found.map(async (save) =>
        'record' in save
          ? saveHolding(save.path, await openSave(pieceDirectory(save.path)))
          : { path: save.path, problem: save.problem },
      ),
    );
    return { kind: 'run', path, saves };
  }
  return explainFlags(() => readFiles(path, given));
}

const EXPECTED =
  'Give a save (RUN/saves/step-000120), a run, a directory of adapters, a model directory with its config.json, or a GGUF file.';

/** Reads adapters or a model. */
async function readFiles(path: string, given: string): Promise<Holding> {
  const adapter = findAdapter(path);
  if (existsSync(join(adapter, ADAPTER_FILES.config))) {
    const lora = await readAdapter(adapter);
    const tensors = await withAdapterState(adapter, async (state) => rowsOf(state));
    return { kind: 'adapter', path: adapter, lora, tensors };
  }
  const directory = findModelDirectory(path)!;
  if (!existsSync(join(directory.path, 'config.json'))) {
    const isCut = readdirSync(path).some((name) => name.endsWith('.pieces'));
    const what = isCut
      ? `has pieces of a save without their ${INDEX_FILE}: a save that did not end`
      : 'holds nothing that is known here';
    throw new UsageError(`${given} ${what}. ${EXPECTED}`);
  }
  const { config, own } = await readTextModel(directory.path);
  const tensors = directory.hasWeights ? await tensorsIn(directory.path, { config, own }) : [];
  return { kind: 'model', path: directory.path, model: factsOf(config), tensors };
}

async function tensorsIn(path: string, { config, own }: TextModel): Promise<TensorRow[]> {
  if (isEncoder(config)) {
    const kind = await readModelKind(path);
    return await withEncoder(path, kind, async ({ state }) => rowsOf(state));
  }
  const task = own.classes === undefined ? 'lm' : usualTask(config, own);
  const modelConfig = configFor(task, config);
  const head = resolveHead({ task, pooling: undefined }, modelConfig, own);
  return await withTaskState(path, { modelConfig, head }, async (state) => rowsOf(state));
}

/** A file's model, its tensors with the types that they have in it. */
function ggufHolding(path: string): Promise<ModelHolding> {
  return withGgufModel(path, async ({ config, tensors }) => {
    const rows = [...tensors].map(([name, { type, shape, byteLength }]) => {
      return { name, kind: 'parameter', dtype: type, shape, bytes: byteLength } as const;
    });
    return { kind: 'model', path, model: factsOf(config), tensors: rows };
  });
}

/**
 * Reads every piece of a save and compares its checksum.
 * @returns what is wrong with the first piece that is damaged
 */
export async function problemIn(path: string): Promise<string | undefined> {
  try {
    const save = await openSave(pieceDirectory(path));
    const all = [...save.tensors.values()].map((tensor): WantedPiece => {
      return { ...tensor, start: 0, end: elementsOf(tensor), write: () => {} };
    });
    await save.verify(all);
    return undefined;
  } catch (error) {
    if (!isDamage(error)) {
      throw error;
    }
    return (error as Error).message;
  }
}

function saveHolding(path: string, save: Save): SaveHolding {
  const run = save.extra.run as SavedRun | undefined;
  const { optimizer, files } = save;
  const modelConfig = run?.config.modelConfig;
  return {
    kind: 'save',
    path,
    model: modelConfig && factsOf(modelConfig),
    run,
    writers: Object.keys(files).length,
    optimizer: optimizer && {
      kind: optimizer.kind,
      parameters: Object.keys(optimizer.steps).length,
    },
    files,
    bytes: Object.values(files).reduce((sum, bytes) => sum + bytes, 0),
    tensors: [...save.tensors.values()].map((tensor) => {
      const { kind, dtype, shape } = tensor;
      const bytes = elementsOf(tensor) * byteSize(dtype);
      return { name: labelOf(tensor), kind, dtype, shape, bytes };
    }),
  };
}

function factsOf(config: TrainedConfig): ModelFacts {
  return { family: config.model_type, parameters: countParameters(config), config };
}

function rowsOf(state: ReadonlyMap<string, LazyTensor>): TensorRow[] {
  return [...state].map(([name, { dtype, shape }]) => {
    const bytes = elementsOf({ shape }) * fileByteSize(dtype);
    return { name, kind: 'parameter', dtype, shape, bytes };
  });
}

export function elementsOf({ shape }: { readonly shape: readonly number[] }): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

/**
 * The bytes of one element: the digits of the dtype's name are its bits, and a bool takes a byte.
 */
function fileByteSize(dtype: LazyTensor['dtype']): number {
  return Number(/\d+/.exec(dtype)?.[0] ?? 8) / 8;
}

async function explainDamage<T>(read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (cause) {
    if (!isDamage(cause)) {
      throw cause;
    }
    throw new TrainerError((cause as Error).message, { cause });
  }
}

/**
 * Rewords errors of reading models and adapters, which name the flag that gave them: here there is
 * none.
 */
async function explainFlags<T>(read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (cause) {
    if (!(cause instanceof UsageError)) {
      throw cause;
    }
    throw new UsageError(cause.message.replace(/^--(model|adapter): /, ''), { cause });
  }
}
