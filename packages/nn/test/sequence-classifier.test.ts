// Classifiers of texts: their logits against loops in float64, documents packed in a row against
// those alone, pairs of texts, rerankers, and adapters beside a head that is trained whole.

import {
  AdamW,
  applyLora,
  Decoder,
  Gpt2,
  loadStateDict,
  packParameters,
  parsePeftConfig,
  peftConfigText,
  peftState,
  readPeftState,
  stateDict,
} from '@shardweave/nn';
import {
  classificationLoss,
  classifyDocuments,
  Encoder,
  type EncoderConfig,
  makeSequenceClassifier,
  SequenceClassifier,
  textPair,
  yesNoLogits,
  yesNoScores,
} from '@shardweave/nn/embedding';
import { materialize } from '@shardweave/nn/flat';
import { type Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorOf, loose } from '../../../tooling/test-kit/index.ts';
import { expectClose, expectGradients, makeDevice, read, values } from './support/support.js';

const LABELS = ['no', 'yes', 'perhaps'];
const DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1]];
const SIZES = {
  vocab_size: 12,
  hidden_size: 8,
  intermediate_size: 12,
  num_hidden_layers: 1,
  num_attention_heads: 2,
  max_position_embeddings: 8,
  initializer_range: 0.5,
};

const encoder = (device: Device, change: Partial<EncoderConfig> = {}) =>
  new Encoder(
    device,
    {
      ...SIZES,
      hidden_dropout_prob: 0,
      attention_probs_dropout_prob: 0,
      add_pooling_layer: true,
      ...change,
    },
    { seed: 3 },
  );

const decoder = (device: Device) =>
  new Decoder(
    device,
    { ...SIZES, model_type: 'qwen3', num_key_value_heads: 1, tie_word_embeddings: true },
    { seed: 3 },
  );

const row = (device: Device, ids: readonly number[]): Tensor =>
  device.tensor(Uint32Array.from(ids), [1, ids.length]);

/** rows x weight^T + bias, in float64. */
function logitsOf(rows: readonly number[], weight: readonly number[], bias?: readonly number[]) {
  const width = SIZES.hidden_size;
  return Array.from({ length: rows.length / width }, (_, i) =>
    LABELS.map((_, label) =>
      rows
        .slice(i * width, (i + 1) * width)
        .reduce((sum, x, j) => sum + x * weight[label * width + j]!, bias?.[label] ?? 0),
    ),
  ).flat();
}

describe('SequenceClassifier', () => {
  it("has an encoder's pooled rows times its classifier, under BERT's names", async () => {
    const device = makeDevice();
    const body = encoder(device);
    const model = new SequenceClassifier(body, { labels: LABELS });
    const names = model.namedParameters().map(([name]) => name);
    expect(names.slice(-4)).toEqual([
      ...['bert.pooler.dense.weight', 'bert.pooler.dense.bias'],
      ...['classifier.weight', 'classifier.bias'],
    ]);
    expect(model.namedParameters().every(([name, tensor]) => tensor.name === name)).toBe(true);
    const { weight, bias } = model.head;
    expect(await read(bias!)).toEqual([0, 0, 0]); // which begins as transformers' does
    bias!.storage.write(new Uint8Array(Float32Array.of(1, 2, 3).buffer));
    const ids = row(device, [5, 6, 7]);
    const pooled = await read(await body.call(ids, { isPooled: true }));
    const logits = await model.call(ids);
    expect(logits.shape).toEqual([1, 3]);
    expectClose(await read(logits), logitsOf(pooled, await read(weight), [1, 2, 3]), 1e-6);
    device.dispose();
  });

  it.each([
    ['Decoder', decoder, 'model'],
    [
      'Gpt2',
      (device: Device) =>
        new Gpt2(device, { vocab_size: 12, n_positions: 8, n_embd: 8, n_layer: 1, n_head: 2 }),
      'transformer',
    ],
  ] as const)('has the last row of a %s times its score', async (_, make, prefix) => {
    const device = makeDevice();
    const body = make(device);
    const model = new SequenceClassifier(body, { labels: LABELS }).eval() as SequenceClassifier;
    const names = model.namedParameters().map(([name]) => name);
    expect(names.at(-1)).toBe('score.weight');
    expect(names.slice(0, -1).every((name) => name.startsWith(`${prefix}.`))).toBe(true);
    const ids = row(device, [5, 6, 7]);
    const last = (await read(await body.call(ids, { onlyHidden: true }))).slice(-8);
    expectClose(await read(await model.call(ids)), logitsOf(last, await read(model.head.weight)));
    device.dispose();
  });

  it.each([
    ['Decoder', decoder],
    ['Encoder', encoder],
  ] as const)('gives packed and padded documents what a %s gives them alone', async (_, make) => {
    const device = makeDevice();
    const model = new SequenceClassifier(make(device), { labels: LABELS });
    const alone = [];
    for (const document of DOCUMENTS) {
      alone.push(...(await read(await classifyDocuments(model, [document]))));
    }
    expectClose(await read(await classifyDocuments(model, DOCUMENTS)), alone, 1e-6);
    const packed = await classifyDocuments(model, DOCUMENTS, { rowLength: 6 });
    expectClose(await read(packed), alone, 1e-6);
    device.dispose();
  });

  it('has the gradients of central differences, through the rows of packed documents', async () => {
    const device = makeDevice();
    const model = new SequenceClassifier(encoder(device), { labels: LABELS });
    const weights = device.tensor(values(12, 9), [4, 3]);
    const loss = async () =>
      sum(mul(await classifyDocuments(model, DOCUMENTS, { rowLength: 6 }), weights));
    const chosen = model
      .namedParameters()
      .filter(([name]) => /classifier.bias|pooler.dense.bias/.test(name));
    await expectGradients(
      chosen.map(([, tensor]) => tensor),
      loss,
    );
    device.dispose();
  });

  it('begins with weights of its own seed, of the deviation that the body begins with', async () => {
    const device = makeDevice();
    const labels = Array.from({ length: 50 }, (_, i) => String(i));
    const weightOf = async (options: object) =>
      read(new SequenceClassifier(encoder(device), { labels, ...options }).head.weight);
    const first = await weightOf({});
    expect(await weightOf({ seed: 0 })).toEqual(first);
    expect(await weightOf({ seed: 1 })).not.toEqual(first);
    expectClose([Math.hypot(...first) / Math.sqrt(first.length)], [0.5], 0.1);
    const half = new SequenceClassifier(encoder(device).to('bf16'), { labels }).to('bf16');
    expect((await half.call(row(device, [1, 2]))).dtype).toBe('f32');
    const made = makeSequenceClassifier(
      device,
      { base: encoder(device).config, labels: LABELS, classifierDropout: 0.25 },
      { seed: 5, deferInit: true },
    ) as SequenceClassifier;
    expect(made.parameters().every(({ storage }) => !storage.isFilled)).toBe(true);
    await materialize(made);
    const options = { labels: LABELS, seed: 5 };
    const own = new SequenceClassifier(encoder(device), options);
    expect(await read(made.head.weight)).toEqual(await read(own.head.weight));
    expect(made.dropout.p).toBe(0.25);
    device.dispose();
  });

  it('drops elements of the pooled row in training, as often as its config says', async () => {
    const logits = async (options: object, dropout: number): Promise<number[]> => {
      const device = makeDevice({ seed: 5 });
      const body = encoder(device, { hidden_dropout_prob: dropout });
      const model = new SequenceClassifier(body, { labels: LABELS, ...options });
      body.eval(); // so that only the head's dropout is left
      return read(await classifyDocuments(model, [[1, 2]]));
    };
    const plain = await logits({}, 0);
    expect(await logits({}, 0.6)).not.toEqual(plain);
    expect(await logits({ classifierDropout: 0.6 }, 0)).toEqual(await logits({}, 0.6));
    expect(await logits({ classifierDropout: 0 }, 0.6)).toEqual(plain);
  });

  it('learns labels in packed parameters, and leaves no memory behind', async () => {
    const device = makeDevice();
    const model = new SequenceClassifier(encoder(device), { labels: LABELS });
    const packed = packParameters(model);
    const optimizer = new AdamW(model.parameters(), { lr: 0.03 });
    const losses: number[] = [];
    for (let step = 0; step < 5; step++) {
      await device.scope(async () => {
        const logits = await classifyDocuments(model, DOCUMENTS, { rowLength: 6 });
        const problemType = 'single_label_classification';
        const loss = classificationLoss(logits, [0, 1, 2, 1], { problemType });
        await loss.backward();
        await optimizer.step();
        optimizer.zeroGrad();
        losses.push(await loss.item());
      });
    }
    expect(losses.at(-1)!).toBeLessThan(losses[0]! - 0.2);
    for (const owner of [optimizer, packed, model]) {
      owner.dispose();
    }
    expect(device.memory().live.total).toBe(0);
  });

  it('is refused over other bodies and with labels or arguments that cannot work', async () => {
    const device = makeDevice();
    const model = new SequenceClassifier(decoder(device), { labels: LABELS });
    const ids = row(device, [1, 2]);
    const calls = [
      () =>
        new SequenceClassifier(encoder(device, { add_pooling_layer: false }), { labels: ['a'] }),
      () => new SequenceClassifier(model.head, { labels: LABELS }),
      () => new SequenceClassifier(decoder(device), { labels: ['a', 'a'] }),
      () => model.call(ids, { tokenTypes: ids }),
      () => model.call(ids, { lengths: [[3]] }),
      () => model.call(ids, loose({ segments: ids })),
      () => classifyDocuments(model, [[1], []]),
      () => classifyDocuments(model, [{ ids: [1, 2], tokenTypes: [0] }]),
    ];
    const found = await Promise.all(calls.map(async (each) => (await errorOf(each))?.message));
    expect(found).toEqual([
      'SequenceClassifier: expected an Encoder with a pooler or a LanguageModel, got an Encoder without one. Set add_pooling_layer in its configuration.',
      'SequenceClassifier: expected an Encoder with a pooler or a LanguageModel, got Linear.',
      'SequenceClassifier: expected labels to be a list of at least one name, each once, got ["a", "a"].',
      'SequenceClassifier.call: expected no tokenTypes beside a decoder, got some. Only encoders have types of tokens.',
      'SequenceClassifier.call: expected lengths of at least 1 that add up to at most 2, got [3] (row 0).',
      expect.stringContaining('segments'),
      'classifyDocuments: expected documents of 1 to 1 tokens, got one of 0 (document 1).',
      'classifyDocuments: expected a type for each of 2 tokens, got 1 (document 0).',
    ]);
    device.dispose();
  });
});

describe('a reranker', () => {
  it('gives pairs their types of tokens, wherever a pair lies in its row', async () => {
    const device = makeDevice();
    const body = encoder(device);
    const model = new SequenceClassifier(body, { labels: ['relevance'] });
    const pair = textPair([[5, 6], [7]], { clsId: 1, sepId: 2 });
    expect(pair).toEqual({ ids: [1, 5, 6, 2, 7, 2], tokenTypes: [0, 0, 0, 0, 1, 1] });
    const tokenTypes = row(device, [0, 0, 0, 0, 1, 1]);
    const alone = await read(await model.call(row(device, [1, 5, 6, 2, 7, 2]), { tokenTypes }));
    expect(await read(await classifyDocuments(model, [pair]))).toEqual(alone);
    const scores = await classifyDocuments(model, [[9], pair, [8, 8]], { rowLength: 8 });
    expect(scores.shape).toEqual([3, 1]);
    expectClose((await read(scores)).slice(1, 2), alone, 1e-6);
    const untyped = await classifyDocuments(model, [pair.ids]);
    expect(Math.abs((await read(untyped))[0]! - alone[0]!)).toBeGreaterThan(1e-3);
    device.dispose();
  });

  it.each([
    [9, [1, 2, 3, 4], [5, 6]],
    [8, [1, 2, 3], [5, 6]],
    [7, [1, 2], [5, 6]],
    [5, [1], [5]],
    [4, [1], []],
    [6, [1, 2], [5]],
    [3, [], []],
  ] as const)(
    'keeps the shorter text of a pair longest in %i tokens',
    (maxLength, first, second) => {
      const { ids } = textPair(
        [
          [1, 2, 3, 4],
          [5, 6],
        ],
        { clsId: 10, sepId: 11, maxLength },
      );
      expect(ids).toEqual([10, ...first, 11, ...second, 11]);
    },
  );

  it('has the softmax of yes and no after each prompt, whatever their lengths', async () => {
    const device = makeDevice();
    const model = decoder(device);
    const ids = { yesId: 3, noId: 10 };
    const expected = [];
    for (const prompt of DOCUMENTS) {
      const logits = (await read(await model.call(row(device, prompt)))).slice(-12);
      const [yes, no] = [Math.exp(logits[3]!), Math.exp(logits[10]!)];
      expected.push(yes / (yes + no));
    }
    const scores = await yesNoScores(model, DOCUMENTS, ids);
    expect(scores.shape).toEqual([4, 1]);
    expectClose(await read(scores), expected, 1e-6);
    const logits = await yesNoLogits(model, DOCUMENTS, ids);
    expectClose(
      await read(logits),
      expected.map((p) => Math.log(p / (1 - p))),
      1e-5,
    );
    await classificationLoss(logits, [1, 0, 1, 0], {
      problemType: 'multi_label_classification',
    }).backward();
    expect(model.parameters().every(({ grad }) => grad !== undefined)).toBe(true);
    const refused = [
      () => yesNoScores(model, [[1], []], ids),
      () => yesNoScores(model, [], ids),
      () => yesNoScores(model, DOCUMENTS, { yesId: 12, noId: 1 }),
      () => yesNoScores(model, DOCUMENTS, { yesId: 1, noId: 12 }),
    ];
    const found = [];
    for (const each of refused) {
      found.push((await errorOf(each))?.message);
    }
    expect(found).toEqual([
      'yesNoLogits: expected prompts of at least 1 token, got one of 0 (prompt 1).',
      'yesNoLogits: expected documents of 1 to any number of tokens, got no document.',
      "yesNoLogits: expected ids of at most 11, the model's last one, got 12 and 1.",
      "yesNoLogits: expected ids of at most 11, the model's last one, got 1 and 12.",
    ]);
    device.dispose();
  });
});

describe('adapters beside a head', () => {
  const MODULES = { modulesToSave: ['classifier', 'score'] };

  it('leave the head trained whole, and are saved with it as PEFT does', async () => {
    const device = makeDevice();
    const make = () => new SequenceClassifier(encoder(device), { labels: LABELS, seed: 4 });
    const model = make();
    const config = applyLora(model, { rank: 2, modulesToSave: ['classifier'] });
    expect(config.modulesToSave).toEqual(['classifier']);
    expect(config.layers).toHaveLength(7); // those of the block, and the pooler's
    const trained = model.namedParameters().filter(([, { requiresGrad }]) => requiresGrad);
    const whole = trained.map(([name]) => name).filter((name) => !name.includes('lora_'));
    expect(whole).toEqual(['classifier.weight', 'classifier.bias']);
    await sum(await classifyDocuments(model, DOCUMENTS)).backward();
    expect(trained.every(([, { grad }]) => grad !== undefined)).toBe(true);
    const text = peftConfigText(config, { taskType: 'SEQ_CLS' });
    expect(JSON.parse(text)).toMatchObject({
      ...{ task_type: 'SEQ_CLS', modules_to_save: ['classifier'] },
    });
    expect(parsePeftConfig(text, MODULES).modulesToSave).toEqual(['classifier']);
    expect(() => parsePeftConfig(text)).toThrow(
      'adapter_config.json: expected modules_to_save to be null, got ["classifier"].',
    );
    const file = peftState(await stateDict(model), MODULES);
    const names = [...file.keys()];
    expect(names).toHaveLength(2 * 7 + 2);
    expect(names).toContain('base_model.model.bert.pooler.dense.lora_A.weight');
    expect(names.slice(-2)).toEqual([
      'base_model.model.classifier.weight',
      'base_model.model.classifier.bias',
    ]);
    expect(() => readPeftState(file)).toThrow('classifier.weight');
    const other = make();
    applyLora(other, { rank: 2, seed: 9, modulesToSave: ['classifier'] });
    await loadStateDict(other, readPeftState(file, MODULES), { strict: false });
    const rows = (of: SequenceClassifier) => classifyDocuments(of, DOCUMENTS);
    expect(await read(await rows(other))).toEqual(await read(await rows(model)));
    expect(() => applyLora(make(), { rank: 2, modulesToSave: ['score'] })).toThrow(
      /modulesToSave among the model's modules \(.*classifier.*got 'score'/,
    );
    device.dispose();
  });
});
