// Adapters on disk in PEFT's layout: adapter_config.json beside adapter_model.safetensors.

import { existsSync, readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import {
  FormatError,
  type HostTensor,
  type LazyTensor,
  type LoraConfig,
  openSafetensors,
  parsePeftConfig,
  peftConfigText,
  peftLayers,
  peftState,
  readPeftState,
  safetensorsByteLength,
  safetensorsPieces,
} from '@shardweave/nn';
import { UsageError } from '../errors.js';
import { explainFiles, FileSource } from '../files/file-source.js';
import { RUN_FILES } from '../files/run-files.js';
import { type FilePieces, textFile } from '../files/write-file.js';
import { type HubName, parseHubName } from '../hub/hub-name.js';

export const ADAPTER_FILES = {
  config: 'adapter_config.json',
  weights: 'adapter_model.safetensors',
} as const;

/** What is trained whole beside adapters: a classifier's head, and the pooler before it. */
const WHOLE = { modulesToSave: ['classifier', 'score', 'pooler'] } as const;
/** Says the labels of a classifier beside its adapters, as it would beside its weights. */
export const CLASSES_FILE = 'config.json';

/** Whether a tensor of an adapter's files is of what was trained whole. */
export function isWhole(name: string): boolean {
  return WHOLE.modulesToSave.some((module) => `.${name}`.includes(`.${module}.`));
}

/**
 * The directory that --adapter `path` means: `path` itself or, where it is the --out of a run, the
 * run's adapters.
 */
export function findAdapter(path: string): string {
  const directory = resolve(path);
  const inRun = join(directory, RUN_FILES.adapter);
  const has = (where: string) => existsSync(join(where, ADAPTER_FILES.config));
  return !has(directory) && has(inRun) ? inRun : directory;
}

/**
 * The model on the Hub beside which adapters were trained, as their config names it; undefined for
 * another, and where nobody can read that.
 */
export function hubBaseOf(path: string): HubName | undefined {
  try {
    const text = readFileSync(join(findAdapter(path), ADAPTER_FILES.config), 'utf8');
    const { base = '', revision } = parsePeftConfig(text, WHOLE);
    const name = parseHubName(base);
    return name && { repo: name.repo, revision };
  } catch {
    return undefined;
  }
}

/**
 * The adapters that a directory holds; the header of the weights is read, but not their values.
 * @throws {UsageError} for files that are missing, or that are not plain LoRA
 */
export function readAdapter(directory: string): Promise<LoraConfig> {
  return explain(directory, async () => {
    const text = await readFile(join(directory, ADAPTER_FILES.config), 'utf8');
    const { rank, alpha, dropout, modulesToSave } = parsePeftConfig(text, WHOLE);
    return withTensors(directory, async (state) => {
      for (const [name, { shape }] of state) {
        if (isWhole(name)) {
          continue;
        }
        const narrow = shape[name.includes('.lora_A.') ? 0 : 1];
        if (shape.length !== 2 || narrow !== rank) {
          throw new FormatError(
            `${ADAPTER_FILES.weights}: expected adapters of rank ${rank}, as ${ADAPTER_FILES.config} says, got '${name}' [${shape.join(', ')}].`,
          );
        }
      }
      const layers = peftLayers(state);
      return { rank, alpha, dropout, layers, ...(modulesToSave && { modulesToSave }) };
    });
  });
}

/**
 * Hands the adapters of a directory to `use` under the model's names; each is read when `use` reads
 * it.
 * @throws {UsageError} as readAdapter does
 */
export function withAdapterState<T>(
  directory: string,
  use: (state: ReadonlyMap<string, LazyTensor>) => Promise<T>,
): Promise<T> {
  return explain(directory, () => withTensors(directory, use));
}

/**
 * The files of the adapters in a model's state, the weights first, because a config alone would
 * stand for adapters without values.
 * @param options.base where the base model is: its directory, or its name on the Hub, whose commit
 * is `revision`
 */
export function adapterFiles(
  state: ReadonlyMap<string, HostTensor | LazyTensor>,
  options: {
    readonly config: LoraConfig;
    readonly base: string;
    readonly revision?: string | undefined;
    readonly fanInFanOut: boolean;
    readonly taskType?: 'CAUSAL_LM' | 'FEATURE_EXTRACTION' | 'SEQ_CLS';
    /** What adapter_config.json has no place for. */
    readonly beside?: readonly FilePieces[] | undefined;
  },
): readonly FilePieces[] {
  const { config, beside = [], ...rest } = options;
  const modulesToSave = WHOLE.modulesToSave.filter((name) =>
    [...state.keys()].some((path) => `.${path}`.includes(`.${name}.`)),
  );
  const saved = modulesToSave.length === 0 ? config : { ...config, modulesToSave };
  const tensors = peftState(state, WHOLE);
  const metadata = { format: 'pt' };
  return [
    {
      name: ADAPTER_FILES.weights,
      byteLength: safetensorsByteLength(tensors, { metadata }),
      pieces: () => safetensorsPieces(tensors, { metadata }),
    },
    ...beside,
    textFile(ADAPTER_FILES.config, peftConfigText(saved, rest)),
  ];
}

async function withTensors<T>(
  directory: string,
  use: (state: ReadonlyMap<string, LazyTensor>) => Promise<T>,
): Promise<T> {
  const source = await FileSource.open(join(directory, ADAPTER_FILES.weights));
  try {
    return await use(readPeftState((await openSafetensors(source)).tensors, WHOLE));
  } finally {
    await source.close();
  }
}

async function explain<T>(directory: string, read: () => Promise<T>): Promise<T> {
  if (existsSync(directory) && !existsSync(join(directory, ADAPTER_FILES.config))) {
    throw new UsageError(
      `--adapter: ${directory} holds no ${ADAPTER_FILES.config}, which adapters have. A whole model is a --model; of a run that stopped, shardweave convert makes adapters.`,
    );
  }
  const remedy = `Give a directory with PEFT's ${ADAPTER_FILES.config} and ${ADAPTER_FILES.weights}.`;
  return await explainFiles({ what: `--adapter: ${directory}`, remedy }, read);
}
