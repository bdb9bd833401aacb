// The command `convert`: a save of a run as the files that others read.

import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { CheckpointError, INDEX_FILE, openSave, type Save } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import type { WeightsDType } from '@shardweave/nn';
import { Command, Option } from 'commander';
import { TOKENIZER_FILE } from '../data/tokenizer.js';
import { TrainerError, UsageError } from '../errors.js';
import { problemIn } from '../inspect/holding.js';
import { findModelDirectory } from '../model/model-directory.js';
import { writeTrained } from '../model/write-trained.js';
import type { PreparedRun } from '../run-config.js';
import { findSaves, savesOf } from '../saves/save-directory.js';
import type { SavedRun } from '../saves/saved-run.js';
import { savedState } from '../saves/saved-state.js';
import { defineCommand } from './define-command.js';
import { requireNewDirectory, writeNewDirectory } from './new-directory.js';

interface ConvertFlags {
  readonly from: string;
  readonly out: string;
  readonly dtype: WeightsDType;
  readonly quiet?: boolean;
}

/** The command `convert`. */
export const convert = defineCommand<ConvertFlags>({
  options: convertOptions,
  examples: [
    {
      line: 'convert --from runs/first/saves/step-000120 --out models/at-120',
      says: 'the model as it was at a step, with its tokenizer',
    },
    {
      line: 'convert --from runs/first --out models/newest --dtype bf16',
      says: 'the newest whole save of a run, in 16 bits',
    },
  ],
  run: async (flags, { out, listen }) => {
    const lines = await convertSave(flags, listen().signal);
    if (flags.quiet !== true) {
      out.write(lines.map((line) => `${line}\n`).join(''));
    }
    return 0;
  },
});

function convertOptions(): Command {
  return new Command('shardweave convert')
    .description(
      'Writes a save of a run, by any number of ranks, as a model in the Hugging Face layout, or as PEFT adapters.',
    )
    .usage('--from SAVE --out DIR [flags]')
    .requiredOption('--from <SAVE>', 'a save, or a run: its newest whole one')
    .requiredOption('--out <DIR>', 'a new directory')
    .addOption(
      new Option('--dtype <DTYPE>', 'of the weights')
        .choices(['f32', 'bf16', 'f16'])
        .default('f32'),
    )
    .option('--quiet', 'print nothing but errors');
}

/** Writes the directory; resolves to lines about it. One weight is in memory at a time. */
async function convertSave(
  { from, out, dtype }: ConvertFlags,
  signal: AbortSignal,
): Promise<string[]> {
  requireNewDirectory(out);
  const { path, notes } = await findWhole(from);
  try {
    const save = await openSave(pieceDirectory(path));
    const { step, config } = runOf(save, path);
    const state = savedState(save, { config, dtype, signal });
    await writeNewDirectory(out, (part) =>
      writeTrained(part, { config, state }, { dtype, signal }),
    );
    const what = config.lora === undefined ? 'model' : 'adapters';
    return [...notes, `${out}: ${what} of ${path}, step ${step}, ${dtype}`, ...lost(config, out)];
  } catch (cause) {
    if (!(cause instanceof CheckpointError)) {
      throw cause;
    }
    throw new TrainerError(`--from: ${path} can't be used. ${cause.message}`, { cause });
  }
}

/** The save that --from means, and what is to be told of newer ones that are damaged. */
async function findWhole(from: string): Promise<{ path: string; notes: string[] }> {
  const path = resolve(from);
  if (existsSync(join(path, INDEX_FILE))) {
    return { path, notes: [] };
  }
  const notes: string[] = [];
  for (const save of await findSaves(savesOf(path))) {
    const problem = 'problem' in save ? save.problem : await problemIn(save.path);
    if (problem === undefined) {
      return { path: save.path, notes };
    }
    notes.push(`${save.path} can't be used: ${problem}`);
  }
  if (notes.length > 0) {
    throw new TrainerError(`--from: no save of ${from} is whole. ${notes.join(' ')}`);
  }
  if (existsSync(path) && findModelDirectory(path)?.hasWeights === true) {
    throw new UsageError(
      `--from: ${from} holds a model, and no save: train --model ${from} starts from it as it is, and merge or gguf write it otherwise. Give a save of a run.`,
    );
  }
  throw new UsageError(
    `--from: expected a save (RUN/saves/step-000120) or a run with saves, got ${from}.`,
  );
}

function runOf(save: Save, path: string): { step: number; config: PreparedRun } {
  const run = save.extra.run as SavedRun | undefined;
  if (run === undefined) {
    throw new UsageError(`--from: ${path} is a save that no run made, of a model unknown here.`);
  }
  return { step: run.step, config: run.config as PreparedRun };
}

/** What the run had, and the directory could not be given. */
function lost({ model, tokenizer, lora }: PreparedRun, out: string): string[] {
  const isLost =
    lora === undefined &&
    tokenizer === 'model' &&
    model.kind === 'directory' &&
    !existsSync(join(out, TOKENIZER_FILE));
  return isLost
    ? [`without its tokenizer: ${TOKENIZER_FILE} is not in ${model.path} any more`]
    : [];
}
