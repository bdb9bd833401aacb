// How a run is, seen from outside: whether somebody is at work on it, if its records have no end.

import { hasOwner, nodeFiles } from '@shardweave/shard-store/node';
import type { RunEndKind } from '../output/run-records.js';
import type { RunTold } from '../page/run/page-data.js';
import { spanText } from '../times.js';

/**
 * A run on another machine is taken for dead after so long without a line: longer than most steps
 * and evaluations take.
 */
const SILENT_MS = 10 * 60_000;

/**
 * How the run in `directory` is.
 * @param end how its records say that it ended
 * @param lastMs the time of its last record
 */
export async function standingOf(
  directory: string,
  { end, lastMs, nowMs = Date.now() }: { end?: RunEndKind; lastMs?: number; nowMs?: number },
): Promise<RunTold & Required<Pick<RunTold, 'state'>>> {
  if (end !== undefined) {
    return { state: end, isLive: false };
  }
  const isHeld = await hasOwner(nodeFiles, directory).catch(() => undefined);
  if (isHeld === false) {
    return { state: 'killed', isLive: false };
  }
  const silentMs = lastMs === undefined ? 0 : nowMs - lastMs;
  if (isHeld === undefined && silentMs > SILENT_MS) {
    const minutes = Math.floor(silentMs / 60_000) * 60_000;
    return { state: 'killed', isLive: false, sign: `no sign of life for ${spanText(minutes)}` };
  }
  return { state: 'live', isLive: true };
}
