// Tests write examples of a task beside a small BERT, and open them as a run opens them.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { newFolder } from '../../../../tooling/test-kit/folders.ts';
import { type ExampleBatch, type Examples, openExamples } from '../../src/data/example-data.js';
import { headOf } from '../../src/data/known-labels.js';
import { prepareTokens } from '../../src/data/prepare-tokens.js';
import { type EncoderFiles, encoderFiles, writeFiles } from './encoder-files.js';
import { configOf } from './jsonl-data.js';

/** Examples of a run; they are the only kind of data that has `at`. */
export interface OpenedExamples extends AsyncDisposable {
  readonly train: Examples;
  readonly valid: Examples | undefined;
}

/** A new directory with a model, by default a BERT without a head. */
export function modelFolder(files: EncoderFiles = encoderFiles()): string {
  return writeFiles(newFolder(), files);
}

/** Writes lines as JSON; those that are texts are written as they are. */
export function linesFile(lines: readonly (object | string)[], name = 'data.jsonl'): string {
  const path = join(newFolder(), name);
  const texts = lines.map((line) => (typeof line === 'string' ? line : JSON.stringify(line)));
  writeFileSync(path, texts.map((text) => `${text}\n`).join(''));
  return path;
}

/** Opens the data of a run as its ranks do, on one rank by default. */
export async function openTask(flags: string): Promise<OpenedExamples> {
  const ranks = flags.includes('--ranks') ? '' : ' --ranks 1';
  const config = await configOf(`${flags}${ranks}`);
  const files = await prepareTokens(config, { entry: '' });
  const head = await headOf(config, files);
  return (await openExamples({ ...config, head }, files)) as OpenedExamples;
}

/** The batches of a step: by rank, those of its micro-steps. */
export async function batchesOf(
  data: Examples,
  step: number,
  ranks: number,
): Promise<ExampleBatch[][]> {
  const all = Array.from({ length: ranks }, (_, rank) =>
    Array.from({ length: data.numMicroSteps }, (_, micro) => data.microBatch(step, rank, micro)),
  );
  return Promise.all(all.map((own) => Promise.all(own)));
}
