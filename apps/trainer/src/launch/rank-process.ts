// The inside of a rank process: it takes its place from the command, works, and leaves when it is
// told to or when the command is gone.

import type { EmitRankEvent } from '../rank/events.js';
import type { ElasticPlace, FromRank, RankPlace, RankWork, ToRank } from './messages.js';
import { describeFailure } from './rank-failure.js';
import { RankWishes } from './rank-wishes.js';

/** The time in which a rank has to leave cleanly; closing sockets and a device takes far less. */
const LEAVE_MS = 2000;

/** Set in the environment of rank processes, by which main.ts recognizes them. */
export const RANK_PROCESS_VARIABLE = 'SHARDWEAVE_RANK_PROCESS';

/** Serves the command that forked this process; the process ends with it. */
export function serveRank(work: RankWork<RankPlace | ElasticPlace>): void {
  const wishes = new RankWishes();
  // Ctrl-C reaches the whole foreground group, and the end of a service reaches all of its
  // processes; only the command decides what to do.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {});
  }
  // Nothing here is worth saving once the command is gone, and an exit handler might hang.
  process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  const fail = (error: unknown) => leave({ type: 'failed', failure: describeFailure(error) }, 1);
  process.on('uncaughtException', fail);
  process.on('unhandledRejection', fail);
  process.on('message', (message: ToRank) => {
    if (message.type !== 'start') {
      wishes.hear(message);
      if (message.type === 'stop') {
        setTimeout(() => process.exit(1), LEAVE_MS).unref();
      }
      return;
    }
    const emit: EmitRankEvent = (event) => send({ type: 'event', event });
    const { config, place } = message;
    const { asked } = wishes;
    work(place, { config, emit, ...asked }).then(
      () => leave({ type: 'done' }, 0),
      (error: unknown) => (asked.signal.aborted ? process.exit(1) : fail(error)),
    );
  });
}

function send(message: FromRank): void {
  process.send?.(message);
}

/**
 * Exits once the message is on its way, after all that were sent before; a trace may take a while.
 */
function leave(message: FromRank, exitCode: number): void {
  if (exitCode !== 0) {
    setTimeout(() => process.exit(exitCode), LEAVE_MS).unref();
  }
  process.send?.(message, undefined, undefined, () => process.exit(exitCode));
}
