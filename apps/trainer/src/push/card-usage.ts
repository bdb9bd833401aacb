// How a pushed run is used, which its task and its files decide: what the Hub reads of the card,
// and lines to copy, as far as they have names that anybody can load.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { MODULES_FILE } from '../files/sentence-files.js';
import { isLanguage, type TaskHead } from '../task/task-head.js';
import type { PushedRun } from './pushed-run.js';

type Task = TaskHead['kind'];
type UsedRun = Pick<PushedRun, 'kind' | 'task' | 'base' | 'labels' | 'path'>;

/** Whether sentence-transformers reads what is there. */
function isSentence({ path }: UsedRun): boolean {
  return existsSync(join(path, MODULES_FILE));
}

/** The fields by which the Hub shows what a model is for, and what reads it. */
export function hubFields(run: UsedRun): {
  readonly library_name: string;
  readonly pipeline_tag: string;
} {
  const pipelines: Readonly<Record<Task, string>> = {
    lm: 'text-generation',
    dpo: 'text-generation',
    orpo: 'text-generation',
    embed: isSentence(run) ? 'sentence-similarity' : 'feature-extraction',
    classify: 'text-classification',
    rerank: 'text-ranking',
  };
  const library = isSentence(run) ? 'sentence-transformers' : 'transformers';
  return {
    library_name: run.kind === 'adapter' ? 'peft' : library,
    pipeline_tag: pipelines[run.task],
  };
}

/** The lines of a shell and of Python that use what is in `repo`; none where they can't be said. */
export function usageLines(run: UsedRun, repo: string): string[] {
  const { base, kind, task } = run;
  if (kind === 'adapter' && base === undefined) {
    return [];
  }
  const from = kind === 'adapter' ? `--model ${base!.repo} --adapter ${repo}` : `--model ${repo}`;
  const command = isLanguage(task)
    ? `generate ${from} --prompt 'Once'`
    : `eval ${from} --task ${task} --data examples.jsonl`;
  const python = kind === 'adapter' ? adapterLines(run, repo) : modelLines(run, repo);
  return [
    ...['```sh', `npx shardweave ${command}`, '```'],
    ...(python.length === 0 ? [] : ['', '```python', ...python, '```']),
  ];
}

function modelLines(run: UsedRun, repo: string): string[] {
  const name = JSON.stringify(repo);
  const lines: Readonly<Record<Task, readonly string[]>> = {
    lm: [],
    dpo: [],
    orpo: [],
    embed: [
      'from sentence_transformers import SentenceTransformer',
      `model = SentenceTransformer(${name})`,
    ],
    classify: [
      'from transformers import pipeline',
      `classify = pipeline("text-classification", model=${name})`,
    ],
    rerank: ['from sentence_transformers import CrossEncoder', `model = CrossEncoder(${name})`],
  };
  return run.task === 'embed' && !isSentence(run) ? [] : [...lines[run.task]];
}

function adapterLines({ task, labels }: UsedRun, repo: string): string[] {
  const classes: Readonly<Record<Task, string>> = {
    lm: 'AutoPeftModelForCausalLM',
    dpo: 'AutoPeftModelForCausalLM',
    orpo: 'AutoPeftModelForCausalLM',
    embed: 'AutoPeftModelForFeatureExtraction',
    classify: 'AutoPeftModelForSequenceClassification',
    rerank: 'AutoPeftModelForSequenceClassification',
  };
  // The base has no head, and would be given one of two labels.
  const count = labels === undefined ? '' : `, num_labels=${labels.length}`;
  return [
    `from peft import ${classes[task]}`,
    `model = ${classes[task]}.from_pretrained(${JSON.stringify(repo)}${count})`,
  ];
}
