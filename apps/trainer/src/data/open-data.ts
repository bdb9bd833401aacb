// Opens what `prepareTokens` has made, for any task.

import type { OwnChoice } from '../own-model/open-own-model.js';
import type { RunConfig, TokenFiles } from '../run-config.js';
import { openTokens, type RunData } from './dataset.js';
import { type ExampleConfig, openExamples } from './example-data.js';
import { ownRows } from './own-rows.js';

/** What opening the data of a run takes. */
export type DataConfig = Parameters<typeof openTokens>[0] &
  Omit<ExampleConfig, 'head'> &
  Pick<RunConfig, 'head'> &
  OwnChoice;

/**
 * The data sets of a run. The batches of examples are taken by the objective of their task alone.
 * @throws {UsageError} for data that is too short, or is not what the model and the task can take
 */
export async function openData(config: DataConfig, files: TokenFiles): Promise<RunData> {
  const { head, modelConfig } = config;
  if (modelConfig.model_type === 'module' && modelConfig.rows !== undefined) {
    return (await ownRows(config)) as RunData<never>;
  }
  return head.kind === 'lm' || head.kind === 'module'
    ? await openTokens(config, files)
    : ((await openExamples({ ...config, head }, files)) as RunData<never>);
}
