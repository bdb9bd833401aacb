// The command `merge`: adds adapters into the model that they were trained beside.

import {
  mergeAdapters,
  modelFiles,
  parameterCount,
  StateDictError,
  type WeightsDType,
} from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { Command, Option } from 'commander';
import { tokenizerFiles } from '../data/hub-tokenizer.js';
import { UsageError } from '../errors.js';
import { writeDirectory } from '../files/write-file.js';
import { formatCount } from '../format.js';
import { findAdapter, readAdapter, withAdapterState } from '../model/adapter-directory.js';
import { findModel, withModelState } from '../model/model-directory.js';
import { defineWriter } from './define-command.js';
import { requireNewDirectory, writeOut } from './new-directory.js';

interface MergeFlags {
  readonly model: string;
  readonly adapter: string;
  readonly out: string;
  readonly dtype?: WeightsDType;
  readonly quiet?: boolean;
}

/** The command `merge`. */
export const merge = defineWriter<MergeFlags>({
  options: mergeOptions,
  examples: [
    {
      line: 'merge --model DIR --adapter runs/tuned/adapter --out models/mine',
      says: 'a plain model of what was learnt, with its tokenizer',
    },
  ],
  write: async (flags, signal) => [await mergeInto(flags, signal)],
});

function mergeOptions(): Command {
  return new Command('shardweave merge')
    .description('Adds adapters into the weights that they stand beside, and writes a plain model.')
    .usage('--model DIR --adapter DIR --out DIR [flags]')
    .requiredOption('--model <DIR>', 'the base model that the adapters were trained on')
    .requiredOption('--adapter <DIR>', 'adapter_config.json and adapter_model.safetensors')
    .requiredOption('--out <DIR>', 'a new directory for the model, its tokenizer beside it')
    .addOption(
      new Option(
        '--dtype <DTYPE>',
        'of all weights (default: that of each in the base model)',
      ).choices(['f32', 'bf16', 'f16']),
    );
}

/** Writes the model; resolves to a line about it. One weight is in memory at a time. */
async function mergeInto(
  { model, adapter, out, dtype }: MergeFlags,
  signal: AbortSignal,
): Promise<string> {
  const { path, config } = await findModel(model);
  requireNewDirectory(out);
  const adapterPath = findAdapter(adapter);
  const { rank, alpha, layers } = await readAdapter(adapterPath);
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  try {
    await withModelState(path, config, (base) =>
      withAdapterState(adapterPath, async (adapters) => {
        const fanInFanOut = config.model_type === 'gpt2';
        const state = explain(() =>
          mergeAdapters(base, adapters, { device, scale: alpha / rank, fanInFanOut }),
        );
        const files = modelFiles(config, state, { dtype: dtype ?? 'kept' });
        const all = [...(await tokenizerFiles(path)), ...files];
        await writeOut(out, (place) => writeDirectory(place, all, { signal }));
      }),
    );
  } finally {
    device.dispose();
    await backend.dispose();
  }
  return `${out}: ${config.model_type}, ${formatCount(parameterCount(config))} parameters, adapters of ${layers.length} layers added`;
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
