// The command `merge`: adds adapters into the model that they were trained beside.

import { type LazyTensor, mergeAdapters, StateDictError } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { UsageError } from '../errors.js';
import { writeDirectory } from '../files/write-file.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, oneOf } from '../flags/flag-kinds.js';
import { formatCount } from '../format.js';
import { findAdapter, isWhole, readAdapter, withAdapterState } from '../model/adapter-directory.js';
import { findWeights } from '../model/model-directory.js';
import {
  configFor,
  ownHead,
  readTextModel,
  usualTask,
  withTaskState,
} from '../model/text-model.js';
import { trainedFiles } from '../model/write-trained.js';
import { resolveHead, type TaskHead } from '../task/task-head.js';
import { countParameters, type TextConfig } from '../task/text-config.js';
import { defineWriter, QUIET } from './define-command.js';
import { requireNewDirectory, writeOut } from './new-directory.js';

const FLAGS = {
  model: needed(file, [
    '--model <DIR|ORG/NAME>',
    'the base model that the adapters were trained on',
  ]),
  adapter: needed(file, [
    '--adapter <DIR|ORG/NAME>',
    'adapter_config.json and adapter_model.safetensors',
  ]),
  out: needed(file, ['--out <DIR>', 'a new directory for the model, its tokenizer beside it']),
  dtype: flag(oneOf(['f32', 'bf16', 'f16']), undefined, [
    '--dtype <f32|bf16|f16>',
    'of all weights (default: that of each in the base model)',
  ]),
  quiet: QUIET,
};

/** The command `merge`. */
export const merge = defineWriter({
  name: 'merge',
  description: 'Adds adapters into the weights that they stand beside, and writes a plain model.',
  flags: FLAGS,
  model: 'weights',
  examples: [
    {
      line: 'merge --model DIR --adapter runs/tuned/adapter --out models/mine',
      says: 'a plain model of what was learnt, with its tokenizer',
    },
  ],
  write: async (flags, { signal }) => [await mergeInto(flags, signal)],
});

/** Writes the model; resolves to a line about it. One weight is in memory at a time. */
async function mergeInto(
  { model, adapter, out, dtype }: ValuesOf<typeof FLAGS>,
  signal: AbortSignal,
): Promise<string> {
  const path = findWeights(model);
  requireNewDirectory(out);
  const adapterPath = findAdapter(adapter);
  const { rank, alpha, layers } = await readAdapter(adapterPath);
  const { modelConfig: config, head } = await taskOf(path, adapterPath);
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  try {
    await withTaskState(path, { modelConfig: config, head }, (base) =>
      withAdapterState(adapterPath, async (adapters) => {
        refuseBlocks(path, base);
        const whole = [...adapters].filter(([name]) => isWhole(name));
        const lora = new Map([...adapters].filter(([name]) => !isWhole(name)));
        const fanInFanOut = config.model_type === 'gpt2';
        const state = explain(() =>
          mergeAdapters(base, lora, { device, scale: alpha / rank, fanInFanOut }),
        );
        const source = { kind: 'directory', path, hasWeights: true } as const;
        const all = await trainedFiles(
          {
            config: { model: source, modelConfig: config, head, lora: undefined },
            state: new Map([...state, ...whole]),
          },
          { dtype: dtype ?? 'kept' },
        );
        await writeOut(out, (place) => writeDirectory(place, all, { signal }));
      }),
    );
  } finally {
    device.dispose();
    await backend.dispose();
  }
  return `${out}: ${config.model_type}, ${formatCount(countParameters(config))} parameters, adapters of ${layers.length} layers added`;
}

/** The task that adapters were trained for, as their files and the model's say. */
async function taskOf(
  path: string,
  adapter: string,
): Promise<{ readonly modelConfig: TextConfig; readonly head: TaskHead }> {
  const { config, own } = await readTextModel(path);
  const head = await ownHead(own, adapter);
  const task = usualTask(config, head);
  const modelConfig = configFor(task, config);
  return { modelConfig, head: resolveHead({ task, pooling: undefined }, modelConfig, head) };
}

/** @throws {UsageError} for a base whose numbers have been rounded to those of blocks */
function refuseBlocks(path: string, base: ReadonlyMap<string, LazyTensor>): void {
  const found = [...base].find(([, { blocks }]) => blocks !== undefined);
  if (found !== undefined) {
    const [name, { blocks }] = found;
    throw new UsageError(
      `--model: ${path} has '${name}' in ${blocks!.type} blocks: adapters that are added to it would have to be rounded to blocks again, which loses most of them. Give the 16-bit model that it was made from, or leave the adapters apart, as llama.cpp takes them: shardweave gguf --model ${path} --adapter DIR --out FILE.`,
    );
  }
}

function explain<T>(run: () => T): T {
  try {
    return run();
  } catch (cause) {
    if (!(cause instanceof StateDictError)) {
      throw cause;
    }
    throw new UsageError(`--adapter: ${cause.message}`, { cause });
  }
}
