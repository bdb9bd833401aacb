// The folder that transformers.js loads: configuration, tokenizer, and one ONNX file a type in
// onnx/.

import type { ModelFile } from '@shardweave/nn';
import { OnnxModelError, OnnxUsageError } from './errors.js';
import type { OnnxDType } from './layers.js';
import { numLabels, ONNX_FILES, type OnnxTask, onnxModel } from './onnx-model.js';
import type { ModelState } from './weights.js';

/** The texts of a model's directory without which transformers.js doesn't load it. */
export const ONNX_TEXTS = ['config.json', 'tokenizer.json', 'tokenizer_config.json'] as const;

/** A model as its directory on the Hub has it. */
export interface OnnxFolder {
  /** The texts of ONNX_TEXTS by name. Others are written as they stand. */
  readonly texts: ReadonlyMap<string, string>;
  /** The weights; see OnnxModel. */
  readonly state: ModelState;
}

/** The types of a folder's ONNX files, and the task that they are for. */
export interface OnnxFilesOptions {
  /** The types of the files in onnx/. Default f32 and q8, which transformers.js loads by itself. */
  readonly dtypes?: readonly OnnxDType[];
  readonly task: OnnxTask;
}

/**
 * The files of a folder that transformers.js loads, in the order in which to write them. Their
 * names are paths in the folder, such as `onnx/model.onnx`. A classifier's config.json has labels,
 * LABEL_0 and so on where it had none.
 * @throws {OnnxUsageError} for a text that is missing, and where no type is asked for
 * @throws {OnnxModelError} for as many labels as the classifier doesn't have; see onnxModel for the
 * rest
 * @example
 * ```ts
 * import { type OnnxFolder, onnxFiles } from '@shardweave/onnx';
 *
 * function namesOf(folder: OnnxFolder): string[] {
 *   const files = onnxFiles(folder, { task: 'feature-extraction' });
 *   return files.map(({ name }) => name); // config.json, ..., onnx/model.onnx
 * }
 * ```
 */
export function onnxFiles(folder: OnnxFolder, options: OnnxFilesOptions): readonly ModelFile[] {
  const { texts, state } = folder;
  const { dtypes = ['f32', 'q8'], task } = options;
  for (const name of ONNX_TEXTS) {
    if (!texts.has(name)) {
      throw new OnnxUsageError(
        `onnxFiles: expected the text of ${name}, which transformers.js needs, got none.`,
      );
    }
  }
  if (dtypes.length === 0) {
    throw new OnnxUsageError(
      `onnxFiles: expected dtypes to have ${Object.keys(ONNX_FILES).join(', ')}, got none.`,
    );
  }
  const config = texts.get('config.json')!;
  const models = dtypes.map((dtype) => onnxModel({ config, state }, { dtype, task }));
  const written = task === 'text-classification' ? withLabels(config, numLabels(state)) : config;
  const textFiles = [...texts, ['config.json', written] as const];
  return [...new Map(textFiles)].map(textFile).concat(models);
}

function textFile([name, text]: readonly [string, string]): ModelFile {
  const bytes = new TextEncoder().encode(text);
  return { name, byteLength: bytes.byteLength, pieces: () => [bytes] };
}

/** The text of a config.json that has a label for each of a classifier's numbers. */
function withLabels(config: string, count: number): string {
  const fields = JSON.parse(config) as { readonly id2label?: Readonly<Record<string, string>> };
  const { id2label } = fields;
  if (id2label == null) {
    const labels = Array.from({ length: count }, (_, id) => [id, `LABEL_${id}`] as const);
    const label2id = Object.fromEntries(labels.map(([id, label]) => [label, id]));
    const all = { ...fields, id2label: Object.fromEntries(labels), label2id };
    return `${JSON.stringify(all, undefined, 2)}\n`;
  }
  const labels = Object.keys(id2label).length;
  if (labels !== count) {
    throw new OnnxModelError(
      `onnxFiles: expected id2label of config.json to have the ${count} labels of 'classifier.weight', got ${labels}.`,
    );
  }
  return config;
}
