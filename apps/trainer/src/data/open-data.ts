// Opens what `prepareTokens` has made, for any task.

import type { TokenFiles } from '../run-config.js';
import { openTokens, type RunData } from './dataset.js';
import { type ExampleConfig, openExamples } from './example-data.js';

/** What opening the data of a run takes. */
export type DataConfig = Parameters<typeof openTokens>[0] & ExampleConfig;

/**
 * The data sets of a run. The batches of examples are taken by the objective of their task alone.
 * @throws {UsageError} for data that is too short, or is not what the model and the task can take
 */
export async function openData(config: DataConfig, files: TokenFiles): Promise<RunData> {
  return config.head.kind === 'lm'
    ? await openTokens(config, files)
    : ((await openExamples(config, files)) as RunData<never>);
}
