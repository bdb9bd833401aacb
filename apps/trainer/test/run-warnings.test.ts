// What a run of a task says before it begins, of data and models that some did not mean so.

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { runWarnings } from '../src/config/run-warnings.js';
import { UsageError } from '../src/errors.js';
import { modelFolder, openTask } from './support/example-files.ts';
import { configOf } from './support/jsonl-data.ts';
import { parseFlags } from './support/parse-flags.ts';

const model = modelFolder();
const folder = newFolder();
const faq = join(folder, 'faq');
mkdirSync(faq);
writeFileSync(join(faq, 'README.md'), 'How we collected this.\n');
writeFileSync(join(faq, 'a.csv'), 'query,positive\ncall,me\nsome,years\n');
writeFileSync(join(faq, 'notes.txt'), 'Older ones are elsewhere.\n');

const warningsOf = async (line: string) =>
  runWarnings(
    parseFlags(line.split(' '), () => {}),
    await configOf(line),
  );

it('texts beside examples in a folder are skipped, and told', async () => {
  const flags = `--task embed --model ${model} --batch 2 --ranks 1`;
  await using data = await openTask(`${flags} --data ${faq}`);
  expect(data.train.count).toBe(2);
  expect(await warningsOf(`${flags} --data ${faq}`)).toEqual([
    `--data: ${faq}/README.md and 1 more are texts beside files with fields, and skipped.`,
  ]);
  const named = `${faq}/README.md,${faq}/a.csv`;
  expect(await warningsOf(`${flags} --data ${named}`)).toEqual([]);
  await expect(openTask(`${flags} --data ${named}`)).rejects.toThrow(UsageError);
});

it('a task of a preset begins with random weights, and says so', async () => {
  const flags = `--data ${faq} --steps 1`;
  const [, told] = await warningsOf(`--task embed ${flags}`);
  expect(told).toMatch(/^--task embed: the preset micro begins with random weights and knows no/);
  expect(await warningsOf(`--model nano --data ${faq}/a.csv`)).toEqual([]);
});
