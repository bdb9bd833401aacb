// Whether the weights of a model that is not downloaded yet can be trained here, by the headers of
// their files.

import { type ModelFiles, openModelState } from '@shardweave/nn';
import { explainFiles, withModelFiles } from '../files/file-source.js';
import { hubNameOf } from '../hub/hub-name.js';
import { type ModelKind, openParts, readModelKind } from '../model/encoder-directory.js';
import { readModelConfig } from '../model/model-directory.js';
import { weightsOf } from '../saves/model-save.js';

/**
 * @param directory that of config.json
 * @throws {UsageError} where the files are not those of the model in config.json
 */
export async function checkHeaders(directory: string, files: ModelFiles): Promise<void> {
  const what = `--model: ${hubNameOf(directory)}`;
  const remedy = 'Nothing of its weights was downloaded. Name a model whose files fit each other.';
  const kind = await readModelKind(directory);
  if (kind.isEncoder) {
    await explainFiles({ what, remedy }, () => checkEncoder(directory, files, kind));
    return;
  }
  const config = await readModelConfig(directory);
  // Whether a head that is stored twice is the token table could only be told by reading both.
  const untied = config.model_type === 'gpt2' ? config : { ...config, tie_word_embeddings: false };
  await explainFiles({ what, remedy }, async () => {
    await weightsOf(await openModelState(files, untied), {
      model: { kind: 'directory', path: directory, hasWeights: true },
      modelConfig: config,
    });
  });
}

/** The texts are in the directory, and the weights elsewhere. */
function checkEncoder(directory: string, weights: ModelFiles, kind: ModelKind): Promise<unknown> {
  return withModelFiles(directory, (texts) =>
    openParts(
      { open: async (name) => (await texts.open(name)) ?? (await weights.open(name)) },
      kind,
    ),
  );
}
