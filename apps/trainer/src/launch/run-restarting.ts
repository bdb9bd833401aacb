// Runs a job and, after a rank died, runs it again from its last save: on as many ranks, or, where
// the job is elastic, on those that are left.

import { savesOf, stepsIn } from '../files/save-directory.js';
import { isElastic, type RunConfig } from '../run-config.js';
import type { RunEnd } from '../run-end.js';

export interface RestartOptions {
  /** Tells how the run ended, from what the job rejected with. */
  readonly endOf: (error?: unknown) => RunEnd;
  /** Called before each start but the first. */
  readonly onRestart: (config: RunConfig, reason: string) => void;
}

/**
 * Runs `start`, and again at most --max-restarts times while its end allows it. An elastic job that
 * is sharded also goes on with one rank less each time, down to --min-ranks.
 */
export async function runRestarting(
  asked: RunConfig,
  start: (config: RunConfig) => Promise<void>,
  { endOf, onRestart }: RestartOptions,
): Promise<RunEnd> {
  let config = asked;
  for (let numRestarts = 0; ; ) {
    const end = await start(config).then(() => endOf(), endOf);
    const isSmaller = asked.elastic && !isElastic(asked) && config.ranks > (asked.minRanks ?? 1);
    if (!end.mayRestart || (!isSmaller && numRestarts >= asked.maxRestarts)) {
      return end;
    }
    numRestarts += Number(!isSmaller);
    const hasSaves = stepsIn(savesOf(asked.out!)).length > 0;
    const ranks = config.ranks - Number(isSmaller);
    config = { ...asked, ranks, resume: hasSaves ? 'auto' : (asked.resume ?? 'auto') };
    const count = isSmaller
      ? `on ${ranks} ${ranks === 1 ? 'rank' : 'ranks'}`
      : `restart ${numRestarts} of ${asked.maxRestarts}`;
    onRestart(config, `${end.failure}\nStarting again from the last save (${count}).`);
  }
}
