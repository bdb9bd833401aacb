// A small BERT's files as the Hub has them: an embedder with those of sentence-transformers, or a
// classifier.

import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type HostTensor, writeSafetensors } from '@shardweave/nn';
import {
  type SentenceTransformersConfig,
  sentenceTransformersFiles,
} from '@shardweave/nn/embedding';
import { SMALL, stateOf, textsOf } from '../../../../packages/onnx/test/support/small-encoder.ts';
import { makeDirectory } from '../../src/files/make-directory.js';

/** Contents by their paths in a directory. */
export type EncoderFiles = Readonly<Record<string, string | Uint8Array>>;

const EMBEDDER: SentenceTransformersConfig = {
  ...{ pooling: 'mean', normalize: true, width: SMALL.hidden_size, maxSeqLength: 24 },
};

/** The files of an embedder: of mean pooling, normalized, of texts up to 24 tokens. */
export function embedderFiles(config: Partial<SentenceTransformersConfig> = {}): EncoderFiles {
  const own = sentenceTransformersFiles({ ...EMBEDDER, ...config });
  const files = Object.fromEntries(own.map(({ path, text }) => [path, text]));
  return { ...encoderFiles(), ...files };
}

/** The files of an encoder with nothing beside it. */
export function encoderFiles(): EncoderFiles {
  const { 'config.json': text, ...texts } = Object.fromEntries(textsOf(SMALL));
  const { id2label, ...config } = JSON.parse(text!);
  const state = [...stateOf(SMALL)].filter(([name]) => !name.startsWith('classifier.'));
  return {
    ...texts,
    'config.json': JSON.stringify({ ...config, architectures: ['BertModel'] }),
    'model.safetensors': writeSafetensors(new Map(state)),
  };
}

/** The files of a classifier of these labels, whose config.json has other fields, too. */
export function classifierFiles(labels: readonly string[], fields: object = {}): EncoderFiles {
  const texts = Object.fromEntries(textsOf(SMALL));
  const config = { ...JSON.parse(texts['config.json']!), ...fields };
  const id2label = Object.fromEntries(labels.entries());
  return {
    ...texts,
    'config.json': JSON.stringify({ ...config, id2label }),
    'model.safetensors': writeSafetensors(classifierState(labels.length)),
  };
}

/** Weights of which the head has as many rows as there are labels. */
function classifierState(numLabels: number): Map<string, HostTensor> {
  const state = stateOf(SMALL);
  for (const name of ['classifier.weight', 'classifier.bias']) {
    const { dtype, shape, data } = state.get(name)!;
    const bytes = data.subarray(0, (data.byteLength / shape[0]!) * numLabels);
    state.set(name, { dtype, shape: [numLabels, ...shape.slice(1)], data: bytes });
  }
  return state;
}

/** Writes such files; returns the directory. */
export function writeFiles(directory: string, files: EncoderFiles): string {
  for (const [path, content] of Object.entries(files)) {
    makeDirectory(dirname(join(directory, path)));
    writeFileSync(join(directory, path), content);
  }
  return directory;
}
