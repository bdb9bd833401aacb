// The command `eval` judges the head that a model has been trained with, and none that it would
// have to draw.

import { describe, expect, it } from 'vitest';
import { classifierFiles, embedderFiles, encoderFiles } from './support/encoder-files.ts';
import { linesFile, modelFolder } from './support/example-files.ts';
import { runCli } from './support/run-cli.ts';

const labelled = (...labels: unknown[]) =>
  linesFile(labels.map((label, i) => ({ text: 'call me '.repeat(i + 1), label })));
const ranked = linesFile([
  { query: 'call', positive: 'me', negatives: ['ago', 'some'] },
  { query: 'some', positive: 'ago', negatives: ['me'] },
]);
const classifier = modelFolder(classifierFiles(['calm', 'storm', 'fog']));
const judge = (model: string, data: string, more = '') =>
  runCli(`eval --model ${model} --data ${data} --device cpu --threads 1${more}`.split(' '));

async function refusal(model: string, data: string, more = ''): Promise<string> {
  const { code, err } = await judge(model, data, more);
  expect(code).toBe(2);
  return err.replaceAll(/\/\S*\//g, '').replaceAll(/shardweave-\w+/g, 'DIR');
}

describe('an evaluation', () => {
  it('tells each class of a classifier, by a table and for programs', async () => {
    const { code, out } = await judge(classifier, labelled('fog', 'calm', 'calm'));
    expect(code).toBe(0);
    expect(out).toMatch(
      /^task {7}classify, 3 examples\nloss {7}\d\.\d{6}\naccuracy {3}\d\.\d{4}\nf1 {9}\d\.\d{4}\n\nlabel/,
    );
    expect(out).toMatch(
      /^label {3}precision {4}recall {8}f1 {5}texts\ncalm .* 2\nstorm .* 0\nfog .* 1$/m,
    );
    const { out: json } = await judge(classifier, labelled(2, 0, 0), ' --json');
    const { classes, values, confusion, ...rest } = JSON.parse(json);
    expect(rest).toMatchObject({ task: 'classify', examples: 3, seq: 32 });
    expect(classes.map(({ support }: { support: number }) => support)).toEqual([2, 0, 1]);
    expect(confusion.flat().reduce((sum: number, count: number) => sum + count)).toBe(3);
    expect(out).toContain(`accuracy   ${values.accuracy.toFixed(4)}\n`);
  });

  it("takes a reranker's own head, whatever its label is called", async () => {
    const [first, second] = await Promise.all(
      ['LABEL_0', 'relevant'].map((label) =>
        judge(modelFolder(classifierFiles([label])), ranked, ' --json'),
      ),
    );
    expect(second).toEqual(first);
    const { values, ...rest } = JSON.parse(first!.out);
    expect(rest).toMatchObject({ task: 'rerank', examples: 2 });
    expect(Object.keys(values)).toEqual(['ndcg@10', 'mrr', 'recall@1', 'recall@10']);
    const other = classifierFiles(['LABEL_0']);
    expect(await judge(modelFolder({ ...other, ...encoderWeights() }), ranked)).toMatchObject({
      code: 2,
    });
  });

  it('refuses a model without the head', async () => {
    const plain = modelFolder(encoderFiles());
    expect(await refusal(plain, labelled('calm', 'fog'), ' --task classify')).toBe(
      'error: --task classify: expected a classifier, which has labels, got DIR with none. Train one with shardweave train --task classify.\n',
    );
    expect(await refusal(plain, ranked, ' --task rerank')).toContain('got DIR with none.');
    expect(await refusal(classifier, ranked, ' --task rerank')).toContain(
      'expected a reranker, which has one label, got DIR with 3.',
    );
    const embedder = modelFolder(embedderFiles());
    const found = await judge(embedder, ranked);
    expect(found).toMatchObject({ code: 0, err: '' });
    expect(found.out).toContain(
      'task       embed, 2 examples\nsearch     2 queries, each among all 3 documents\n',
    );
  });

  it('refuses labels that the model does not have', async () => {
    expect(await refusal(classifier, labelled('calm', 'rain'))).toBe(
      'error: --data: data.jsonl has the label "rain", but the model\'s are calm, storm, fog. Rename it, or leave its lines out.\n',
    );
    expect(await refusal(classifier, labelled(['calm'], []))).toContain('has lists of labels, but');
    const lists = modelFolder(
      classifierFiles(['calm', 'fog'], { problem_type: 'multi_label_classification' }),
    );
    const { out } = await judge(lists, labelled(['calm'], []), ' --json');
    expect(JSON.parse(out)).toMatchObject({ task: 'classify', examples: 2 });
  });
});

/** Weights without a classifier's head. */
function encoderWeights() {
  const { 'model.safetensors': weights } = encoderFiles();
  return { 'model.safetensors': weights! };
}
