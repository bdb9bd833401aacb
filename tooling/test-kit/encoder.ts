// An encoder of 3,000 parameters, a classifier on it, and rows of two packed texts that they learn.

import type { Module } from '@shardweave/nn';
import {
  type ClassifierBody,
  classificationLoss,
  Encoder,
  type EncoderConfig,
  SequenceClassifier,
} from '@shardweave/nn/embedding';
import { cast, type Device, mean, square, sub } from '@shardweave/tensor-core';
import type { Rows } from './models.ts';

const CONFIG: Partial<EncoderConfig> = {
  vocab_size: 37,
  hidden_size: 12,
  intermediate_size: 20,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  max_position_embeddings: 8,
  initializer_range: 0.3,
  hidden_dropout_prob: 0.1,
  attention_probs_dropout_prob: 0.1,
  add_pooling_layer: true,
};
/** The lengths of the texts in a row. */
const LENGTHS = [3, 5];

export function tinyEncoder(device: Device): Encoder {
  return new Encoder(device, CONFIG, { seed: 3 });
}

/** A classifier of three labels, on a tinyEncoder that may rest elsewhere. */
export function tinyClassifier(body: ClassifierBody): SequenceClassifier {
  const options = { labels: ['no', 'yes', 'perhaps'], classifierDropout: 0, seed: 3 };
  return new SequenceClassifier(body, options);
}

/** The same for a classifier: the mean loss of labels that follow from each text's first token. */
export function stepClassifier(
  model: Module,
  { first, count }: Rows,
  step: number,
): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: first });
    const rows = Array.from({ length: count }, (_, i) => first + i);
    const texts = rows.flatMap((row) => LENGTHS.map((_, text) => row * 11 + step * 3 + text * 7));
    const ids = texts.flatMap((id, i) =>
      Array.from({ length: LENGTHS[i % 2]! }, (_, position) => (id + position) % 37),
    );
    const width = ids.length / count;
    const logits = await model.call(device.tensor(Int32Array.from(ids), [count, width]), {
      lengths: rows.map(() => LENGTHS),
    });
    const labels = texts.map((id) => id % 3);
    const loss = classificationLoss(logits, labels, { problemType: 'single_label_classification' });
    await loss.backward();
    return loss.item();
  });
}

/**
 * Runs forward and backward of some rows of a step's batch, and returns the mean square of what
 * the result is away from sines of tokens. Every second step has the pooler's rows.
 */
export function stepEncoder(model: Module, { first, count }: Rows, step: number): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: first });
    const places = LENGTHS.flatMap((length, text) =>
      Array.from({ length }, (_, position) => ({ text, position })),
    );
    const rowed = (value: (row: number, place: (typeof places)[number]) => number) =>
      Array.from({ length: count }, (_, i) => places.map((place) => value(first + i, place)));
    const ints = (rows: readonly (readonly number[])[]) =>
      device.tensor(Int32Array.from(rows.flat()), [count, places.length]);
    const ids = rowed(
      (row, { text, position }) => (row * 11 + step * 3 + text * 7 + position) % 37,
    );
    const isPooled = step % 2 === 1;
    const output = await model.call(ints(ids), {
      segments: ints(rowed((_, { text }) => text)),
      positions: ints(rowed((_, { position }) => position)),
      tokenTypes: ints(rowed((_, { text }) => text)),
      isPooled,
    });
    const chosen = isPooled ? ids.map(([id]) => id!) : ids.flat();
    const width = output.shape.at(-1)!;
    const wanted = chosen.flatMap((id) =>
      Array.from({ length: width }, (_, column) => Math.sin(id * 0.4 + column)),
    );
    const targets = device.tensor(Float32Array.from(wanted), output.shape);
    const loss = mean(square(sub(cast(output, 'f32'), targets)));
    await loss.backward();
    return loss.item();
  });
}
