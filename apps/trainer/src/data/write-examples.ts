// Writes the examples of a task as tokens: their texts, and what is said of them.

import { UsageError } from '../errors.js';
import { isPreference, type PreferenceTask } from '../task/task-head.js';
import type { DataSource } from './data-source.js';
import { parseLine } from './document.js';
import { eachEntry, hasNone } from './each-entry.js';
import { type Example, type ExampleTask, readExamples } from './example-shapes.js';
import { type ExampleIndex, ROLES } from './token-file.js';
import { writePairs } from './write-pairs.js';
import type { WritingTools } from './writing-tools.js';

/** Incremented whenever equal lines would be other examples; keys of the cache depend on it. */
export const EXAMPLE_FORMAT = 2;

/** How the lines of examples are read. */
export interface ExampleReading {
  readonly task: ExampleTask | PreferenceTask;
  /** What is put before the texts of queries and of documents. */
  readonly prompts: {
    readonly query?: string | undefined;
    readonly document?: string | undefined;
  };
}

/** Writes the examples of any task. */
export function writeExamples(
  source: DataSource,
  { task, prompts }: ExampleReading,
  tools: WritingTools,
): Promise<ExampleIndex> {
  return isPreference(task)
    ? writePairs(source, tools)
    : writeTexts(source, { task, prompts }, tools);
}

/** Writes the texts of examples without the tokens around them, which a pair has once. */
async function writeTexts(
  source: DataSource,
  { task, prompts }: ExampleReading & { readonly task: ExampleTask },
  { tokenizer, writer, onTokenized }: WritingTools,
): Promise<ExampleIndex> {
  let count = 0;
  let kind: Example['kind'] | undefined;
  const labels = new Map<string, number>();
  const write = async (example: Example, line: number) => {
    if (kind !== undefined && kind !== example.kind) {
      throw new UsageError(
        `expected ${kind}, as the lines before have them, got ${example.kind}. Keep one kind in a file.`,
      );
    }
    kind = example.kind;
    const { first, second, negatives, score } = example;
    const put = (text: string, role: keyof typeof ROLES, prompt = '') =>
      writer.part(tokenizer.encode(prompt + text), ROLES[role], line);
    await put(first, 'first', prompts.query);
    await (second !== undefined && put(second, 'second', prompts.document));
    for (const negative of negatives) {
      await put(negative, 'negative', prompts.document);
    }
    for (const label of example.labels ?? []) {
      const number = labels.get(label) ?? labels.size;
      labels.set(label, number);
      writer.label(count, number);
    }
    if (score !== undefined) {
      writer.label(count, new Uint32Array(Float32Array.of(score).buffer)[0]!);
    }
    count++;
  };
  await eachEntry(source, { onTokenized }, async ({ text, number }) => {
    for (const example of readExamples(parseLine(text), task)) {
      await write(example, number);
    }
  });
  if (kind === undefined) {
    throw hasNone(source, 'examples');
  }
  return { count, kind, labels: [...labels.keys()], frame: tokenizer.frame };
}
