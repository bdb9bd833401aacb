// What --init-from means: the weights that a new run begins with, and nothing else of their run.

import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { INDEX_FILE } from '@shardweave/checkpoint';
import { UsageError } from '../errors.js';
import { isGgufFile } from '../files/gguf-model.js';
import { findSaves, hasSaves, readSave, savesOf } from '../files/save-directory.js';
import { hubNameOf } from '../hub/hub-name.js';
import { ADAPTER_FILES, findAdapter } from '../model/adapter-directory.js';
import { findModelDirectory } from '../model/model-directory.js';
import type { LoraRun, ModelSource, RunConfig } from '../run-config.js';
import { isLanguage } from '../task/task-head.js';
import type { SavedRun } from './saved-run.js';

interface SavedWeights {
  readonly kind: 'save';
  readonly path: string;
  readonly record: SavedRun;
}

/** A save, or a directory or GGUF file of a model. */
export type FirstWeights = SavedWeights | { readonly kind: 'model'; readonly path: string };

/**
 * The weights at a place: those of a save, of a run's newest save or, where it has none, of its
 * model; or those of a model directory.
 * @throws {UsageError} where there are none
 */
export async function findFirstWeights(given: string): Promise<FirstWeights> {
  const path = resolve(given);
  const isSave = existsSync(join(path, INDEX_FILE));
  if (isSave || hasSaves(savesOf(path))) {
    const [found] = isSave ? [await readSave(path)] : await findSaves(savesOf(path));
    if (found === undefined || 'problem' in found) {
      throw new UsageError(
        `--init-from: ${found?.path ?? path} can't be used: ${found?.problem} Give another save of the run, or its model.`,
      );
    }
    return { kind: 'save', path: found.path, record: found.record };
  }
  const adapter = findAdapter(path);
  if (existsSync(join(adapter, ADAPTER_FILES.config))) {
    throw new UsageError(
      `--init-from: ${given} holds adapters. Give --adapter ${adapter} beside their --model: it begins with these weights, too.`,
    );
  }
  const model = findModelDirectory(path);
  if (model?.hasWeights !== true) {
    throw new UsageError(
      `--init-from: expected a save, a run or a model directory with weights, got ${given}. Give one of these, or leave it out for random weights.`,
    );
  }
  return { kind: 'model', path: model.path };
}

/**
 * The model of a save, whose own weights count for nothing where the save has all of them.
 * @throws {UsageError} where it is not there any more
 */
export function modelOfSave({ path, record }: SavedWeights): ModelSource {
  const { model } = record.config;
  if (model?.kind !== 'directory') {
    return model!;
  }
  const found = isGgufFile(model.path) || existsSync(model.path);
  const directory = found ? findModelDirectory(model.path) : undefined;
  if (directory === undefined) {
    throw new UsageError(
      `--init-from: ${path} is of a run of the model ${hubNameOf(model.path) ?? model.path}, which is not there. Give it as --model.`,
    );
  }
  return { kind: 'directory', ...directory };
}

/** Dropout is the run's own, and no part of what weights are of. */
const OWN = /dropout|_pdrop$/;

/**
 * Refuses weights of another model than the run's.
 * @param shape what the weights are of
 * @throws {UsageError} naming the first field that differs
 */
export function requireSameShape(
  path: string,
  shape: RunConfig['modelConfig'] | undefined,
  modelConfig: RunConfig['modelConfig'],
): void {
  const [theirs, ours] = [shape, modelConfig].map(
    (config): Readonly<Record<string, unknown>> => ({ ...config }),
  ) as [Readonly<Record<string, unknown>>, Readonly<Record<string, unknown>>];
  const fields = [...new Set([...Object.keys(theirs), ...Object.keys(ours)])];
  const other = fields.find(
    (name) => !OWN.test(name) && JSON.stringify(theirs[name]) !== JSON.stringify(ours[name]),
  );
  if (other !== undefined) {
    const [was, is] = [theirs, ours].map((config) => JSON.stringify(config[other]) ?? 'none');
    throw new UsageError(
      `--init-from: ${path} has the weights of another model (${other}: ${was}, got ${is}). Give the --model that they are of.`,
    );
  }
}

/** @throws {UsageError} for a save of another model, task or kind of training */
export function requireFitting(
  { path, record }: SavedWeights,
  { modelConfig, lora, head }: Pick<RunConfig, 'modelConfig' | 'lora' | 'head'>,
): void {
  const refuse = (has: string, remedy: string) =>
    new UsageError(`--init-from: ${path} ${has}. ${remedy}`);
  const { lora: theirs, head: theirHead } = record.config;
  const theirTask = theirHead?.kind ?? 'lm';
  const isOneModel = isLanguage(theirTask) && isLanguage(head.kind);
  if (!isOneModel && theirTask !== head.kind) {
    throw refuse(
      `was trained for --task ${theirTask}, got --task ${head.kind}`,
      'Make a model directory of it with shardweave convert, and give that as --model.',
    );
  }
  requireSameShape(path, record.config.modelConfig, modelConfig);
  if (lora === undefined && theirs !== undefined) {
    throw refuse(
      'holds adapters alone, and this run trains a whole model',
      `Give --lora-rank ${theirs.rank} and the other flags of these adapters, or merge them into their model first.`,
    );
  }
  if (lora !== undefined && theirs === undefined) {
    throw refuse(
      'holds a whole model, and this run trains adapters beside one',
      'Make a model directory of it with shardweave convert, and give that as --model.',
    );
  }
  if (lora !== undefined && adaptersText(lora) !== adaptersText(theirs!)) {
    throw refuse(
      `holds other adapters: ${adaptersText(theirs!)}, got ${adaptersText(lora)}`,
      'Give --lora-rank, --lora-alpha and --lora-targets as they were.',
    );
  }
}

function adaptersText({ rank, alpha, targets }: LoraRun): string {
  return `rank ${rank}, alpha ${alpha}, on ${typeof targets === 'string' ? targets : targets.join(', ')}`;
}
