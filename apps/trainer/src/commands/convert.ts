// The command `convert`: turns a save of a run into the files that other programs read, and such
// files into a save.

import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import {
  CheckpointError,
  INDEX_FILE,
  openSave,
  type PieceStore,
  type Save,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { tokenizerName } from '../config/resolve-config.js';
import { TOKENIZER_FILE } from '../data/tokenizer.js';
import { TrainerError, UsageError } from '../errors.js';
import { findSaves, savesOf } from '../files/save-directory.js';
import { fillDirectory, writeDirectory } from '../files/write-file.js';
import { flag, needed, type ValuesOf } from '../flags/flag.js';
import { file, oneOf } from '../flags/flag-kinds.js';
import { problemIn } from '../inspect/holding.js';
import { findModelDirectory, findWeights } from '../model/model-directory.js';
import { configFor, readTextModel, usualTask, withTaskState } from '../model/text-model.js';
import { trainedFiles } from '../model/write-trained.js';
import type { PreparedRun } from '../run-config.js';
import { writeModelSave } from '../saves/model-save.js';
import type { SavedRun } from '../saves/saved-run.js';
import { savedState } from '../saves/saved-state.js';
import { resolveHead } from '../task/task-head.js';
import { defineWriter, QUIET } from './define-command.js';
import { requireNewDirectory, writeOut } from './new-directory.js';

const FLAGS = {
  from: needed(file, [
    '--from <DIR>',
    'a save, or a run: its newest whole one; with --to save a model',
  ]),
  out: needed(file, ['--out <DIR>', 'a new directory']),
  to: flag(oneOf(['model', 'save']), 'model', ['--to <model|save>', 'what --out is to hold']),
  dtype: flag(oneOf(['f32', 'bf16', 'f16']), undefined, [
    '--dtype <f32|bf16|f16>',
    "of a model's weights (default: f32); a save has those of its model",
  ]),
  quiet: QUIET,
};

type ConvertFlags = ValuesOf<typeof FLAGS>;

/** The command `convert`. */
export const convert = defineWriter({
  name: 'convert',
  description:
    'Writes a save of a run, by any number of ranks, as a model in the Hugging Face layout or as PEFT adapters, and such a model as a save.',
  flags: FLAGS,
  examples: [
    {
      line: 'convert --from runs/first/saves/step-000120 --out models/at-120',
      says: 'the model as it was at a step, with its tokenizer',
    },
    {
      line: 'convert --from runs/first --out models/newest --dtype bf16',
      says: 'the newest whole save of a run, in 16 bits',
    },
    {
      line: 'convert --from models/at-120 --to save --out runs/save-of-120',
      says: 'a model directory as a save, its weights in checked pieces',
    },
  ],
  write: (flags, { signal }) => (flags.to === 'save' ? convertModel : convertSave)(flags, signal),
});

/** Writes the directory; resolves to lines about it. One weight is in memory at a time. */
async function convertSave(
  { from, out, dtype = 'f32' }: ConvertFlags,
  signal: AbortSignal,
): Promise<string[]> {
  requireNewDirectory(out);
  const { path, notes } = await findWhole(from);
  try {
    const save = await openSave(pieceDirectory(path));
    const { step, config } = runOf(save, path);
    const state = await savedState(save, { config, dtype, signal });
    const files = await trainedFiles({ config, state }, { dtype });
    await writeOut(out, (path) => writeDirectory(path, files, { signal }));
    const what = config.lora === undefined ? 'model' : 'adapters';
    return [...notes, `${out}: ${what} of ${path}, step ${step}, ${dtype}`, ...lost(config, out)];
  } catch (cause) {
    if (!(cause instanceof CheckpointError)) {
      throw cause;
    }
    throw new TrainerError(`--from: ${path} can't be used. ${cause.message}`, { cause });
  }
}

/** Writes a save of a model directory, which is read by ranges. */
async function convertModel(
  { from, out, dtype }: ConvertFlags,
  signal: AbortSignal,
): Promise<string[]> {
  if (dtype !== undefined) {
    throw new UsageError('--dtype: a save has the weights of its model. Leave it out.');
  }
  requireNewDirectory(out);
  if (existsSync(join(from, INDEX_FILE))) {
    throw new UsageError(
      `--from: ${from} is a save already. Leave --to save out for a model of it.`,
    );
  }
  const path = findWeights(from, '--from');
  const { config: found, own } = await readTextModel(path);
  const task = usualTask(found, own);
  const modelConfig = configFor(task, found);
  const head = resolveHead({ task, pooling: undefined }, modelConfig, own);
  const model = { kind: 'directory', path, hasWeights: true } as const;
  const config = { model, modelConfig, head, tokenizer: tokenizerName({}, model, modelConfig) };
  await withTaskState(path, { modelConfig, head }, (state) =>
    writeOut(out, (all) =>
      fillDirectory(all, async (part) => {
        const store: PieceStore = { ...pieceDirectory(part), lock: async () => async () => {} };
        await writeModelSave(store, state, { config, signal });
      }),
    ),
  );
  return [`${out}: save of ${path}, step 0, without optimizer state`];
}

/** The save that --from means, with notes about newer saves that are damaged. */
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
      `--from: ${from} holds a model, and no save. Give a save of a run, or --to save: ${from} becomes one.`,
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

/** Notes on what the run had and the directory could not be given. */
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
