// Runs a job and, after a rank died, runs it again from its last save.

import { RankFailedError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import { savesOf, stepsIn } from '../saves/save-directory.js';

export interface RestartOptions {
  /** Called before each start but the first. */
  readonly onRestart: (config: RunConfig, reason: string) => void;
  /** No start follows once one of these is aborted. */
  readonly signals: readonly AbortSignal[];
}

/**
 * Runs `start` until it resolves, and again at most --max-restarts times.
 * @throws what the last start threw; at once where no rank failed
 */
export async function runRestarting(
  asked: RunConfig,
  start: (config: RunConfig) => Promise<void>,
  options: RestartOptions,
): Promise<void> {
  let config = asked;
  for (let numRestarts = 0; ; numRestarts++) {
    try {
      return await start(config);
    } catch (error) {
      const isStopped = options.signals.some(({ aborted }) => aborted);
      const isOver = numRestarts === asked.maxRestarts || isStopped;
      if (!(error instanceof RankFailedError) || isOver) {
        throw error;
      }
      const hasSaves = (await stepsIn(savesOf(asked.outDir!))).length > 0;
      config = { ...asked, resume: hasSaves ? 'auto' : (asked.resume ?? 'auto') };
      const count = `restart ${numRestarts + 1} of ${asked.maxRestarts}`;
      options.onRestart(config, `${error.message}\nStarting again from the last save (${count}).`);
    }
  }
}
