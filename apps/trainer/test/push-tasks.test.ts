// What a run of a task has left is pushed whole, folders too, and with a card by which the Hub and
// other programs know what it is for; a command finds it again by its name and judges it the same.

import { cpSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { readAdapterClasses } from '../src/model/text-model.js';
import { hubFields, usageLines } from '../src/push/card-usage.js';
import { embedderFiles, encoderFiles, writeFiles } from './support/encoder-files.ts';
import { linesFile } from './support/example-files.ts';
import { Pushes } from './support/push-runs.ts';

const at = new Pushes();
at.home = newFolder();
const BASE = 'ocean/bert';
const encoder = writeFiles(newFolder(), encoderFiles());
const words = ['call me', 'some years', 'never mind', 'ago', 'my purse', 'sail about'];
const DATA = {
  embed: words.map((query, i) => ({ query, positive: words[(i + 1) % 6] })),
  classify: words.map((text, i) => ({ text, label: ['calm', 'storm', 'fog'][i % 3] })),
  rerank: words.map((query, i) => ({ query, positive: words[(i + 1) % 6], negatives: ['money'] })),
};
const data = Object.fromEntries(
  Object.entries(DATA).map(([task, lines]) => [task, linesFile(lines)]),
);
/** The runs that tests have made, by their flags. */
const made = new Map<string, string>();

beforeAll(async () => {
  await at.open(new Map());
  at.hub.push(BASE, { files: { ...encoderFiles() } });
});
afterAll(() => at.close());

/** The --out of a run of a task, and what it has left of a kind. */
async function trained(task: keyof typeof DATA, flags: string): Promise<string> {
  const line = `train --task ${task} --data ${data[task]} ${flags} --valid-fraction 0.34 --eval-every 1 --steps 2`;
  const out = made.get(line) ?? join(newFolder(), 'run');
  if (!made.has(line)) {
    const run = `${line} --batch 2 --device cpu --threads 1 --strategy single --quiet --out ${out}`;
    expect(await at.run(run)).toMatchObject({ code: 0, err: '' });
    made.set(line, out);
  }
  return out;
}

/** Pushes a run; returns the names of what is there then, and the card in its two parts. */
async function pushed(from: string, repo: string) {
  expect(await at.run(`push --from ${from} --to ${repo} --yes`)).toMatchObject({
    code: 0,
    err: '',
  });
  const files = at.pushed(repo);
  const [, front, text] = String(files['README.md']).split('---\n');
  return { files, front: parse(front!), text: text! };
}

const judge = (model: string, task: keyof typeof DATA) =>
  at.run(`eval ${model} --data ${data[task]} --device cpu --threads 1`);

describe('a push of', () => {
  it('an embedder brings the files of sentence-transformers, and the folder of its pooling', async () => {
    const model = writeFiles(newFolder(), embedderFiles({ pooling: 'cls' }));
    const run = await trained('embed', `--model ${model}`);
    const { files, front, text } = await pushed(run, 'ann/embedder');
    const own = ['modules.json', 'config_sentence_transformers.json', 'sentence_bert_config.json'];
    for (const name of [...own, '1_Pooling/config.json', 'model.safetensors', 'tokenizer.json']) {
      const bytes = readFileSync(join(run, 'model', name));
      expect(Buffer.from(files[name]!).equals(bytes), name).toBe(true);
    }
    expect(front).toMatchObject({
      library_name: 'sentence-transformers',
      pipeline_tag: 'sentence-similarity',
    });
    expect(text).toContain('model = SentenceTransformer("ann/embedder")');
    expect(text).toContain(
      'npx shardweave eval --model ann/embedder --task embed --data examples.jsonl\n',
    );
    expect(text).toMatch(/\| task \| embed: cls pooling to length 1, /);
    expect(text).not.toContain('generate');
    const lines = readFileSync(join(run, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
    const { figures } = JSON.parse(lines.at(-1)!) as { figures: Record<string, number> };
    const cells = Object.values(figures).map((value) => value.toFixed(4));
    expect(text).toContain('| step | ndcg@10 | mrr | recall@1 | recall@10 |');
    expect(text).toContain(`| 2 | ${cells.join(' | ')} |\n`);
    const again = await judge('--model ann/embedder', 'embed');
    expect(again).toMatchObject({ code: 0, out: expect.stringContaining('ndcg@10') });
  });

  it('a classifier says what it is', async () => {
    const classifier = await pushed(await trained('classify', `--model ${encoder}`), 'ann/classes');
    expect(classifier.front).toMatchObject({
      ...{ library_name: 'transformers', pipeline_tag: 'text-classification' },
    });
    expect(classifier.text).toContain('pipeline("text-classification", model="ann/classes")');
    expect(classifier.text).toContain('| step | accuracy | f1 |');
    expect(classifier.text).toContain('| task | classify: 3 labels, calm, fog, storm |');
    expect(Object.keys(classifier.files)).not.toContain('modules.json');
  });

  it("a classifier's adapters brings the labels, and can be repeated", async () => {
    const run = await trained('classify', `--model ${BASE} --lora-rank 2`);
    const { files, front, text } = await pushed(run, 'ann/lora');
    expect(readdirSync(join(run, 'adapter')).sort()).toEqual([
      'adapter_config.json',
      'adapter_model.safetensors',
      'config.json',
    ]);
    expect(JSON.parse(String(files['config.json']))).toMatchObject({
      id2label: { 0: 'calm', 1: 'fog', 2: 'storm' },
    });
    expect(front).toMatchObject({ library_name: 'peft', pipeline_tag: 'text-classification' });
    expect(text).toContain(
      'model = AutoPeftModelForSequenceClassification.from_pretrained("ann/lora", num_labels=3)',
    );
    const again = await judge(`--model ${BASE} --adapter ann/lora`, 'classify');
    expect(again).toEqual(await judge(`--model ${BASE} --adapter ${run}`, 'classify'));
    expect(again.code).toBe(0);
    const count = at.uploads.commits.length;
    await pushed(run, 'ann/lora');
    expect(at.uploads.commits).toHaveLength(count + 1);
  });

  it.each([
    ['model', 'rerank', 'transformers', 'text-ranking', 'CrossEncoder("ann/it")'],
    ['model', 'lm', 'transformers', 'text-generation', "generate --model ann/it --prompt 'Once'"],
    ['adapter', 'embed', 'peft', 'feature-extraction', 'AutoPeftModelForFeatureExtraction'],
    ['adapter', 'rerank', 'peft', 'text-ranking', '.from_pretrained("ann/it", num_labels=1)'],
    ['adapter', 'lm', 'peft', 'text-generation', '.from_pretrained("ann/it")'],
  ] as const)('a kind and a task names both: %s, %s', (kind, task, library, pipeline, use) => {
    const base = { repo: BASE, revision: undefined };
    const labels = task === 'rerank' ? ['LABEL_0'] : undefined;
    const run = { kind, task, base, labels, path: newFolder() };
    expect(hubFields(run)).toEqual({ library_name: library, pipeline_tag: pipeline });
    expect(usageLines(run, 'ann/it').join('\n')).toContain(use);
    expect(usageLines({ ...run, base: undefined }, 'ann/it').length > 0).toBe(kind === 'model');
  });

  it('a classifier whose head is cut off is refused', async () => {
    const run = join(newFolder(), 'cut');
    cpSync(await trained('classify', `--model ${encoder}`), run, { recursive: true });
    writeFiles(join(run, 'model'), { 'model.safetensors': encoderFiles()['model.safetensors']! });
    const { code, err } = await at.run(`push --from ${run} --to ann/cut --yes`);
    expect(code).toBe(2);
    expect(err).toContain("can't be pushed.");
    expect(err).toContain('classifier');
  });
});

it("a base's config.json beside adapters is not taken for a classifier's", async () => {
  const directory = newFolder();
  expect(await readAdapterClasses(directory)).toBeUndefined();
  const config = { model_type: 'llama', architectures: ['LlamaForCausalLM'], vocab_size: 7 };
  writeFileSync(join(directory, 'config.json'), JSON.stringify(config));
  expect(await readAdapterClasses(directory)).toBeUndefined();
});
