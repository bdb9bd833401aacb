// Entry point of the command and, started by it, of its processes and threads.

import { fileURLToPath } from 'node:url';
import { isTokenizeThread, serveTokenizeThread } from './data/tokenize-thread.js';
import { PROBE_VARIABLE, probeAdapters } from './launch/adapter-probe.js';
import { RANK_PROCESS_VARIABLE, serveRank } from './launch/rank-process.js';
import { isRankThread, serveRankThread } from './launch/rank-thread.js';
import { allowRelaxedSimd } from './launch/relaxed-simd.js';

allowRelaxedSimd();

if (isTokenizeThread()) {
  await serveTokenizeThread();
} else if (isRankThread()) {
  const { runThreadRank } = await import('./rank/run-thread-rank.js');
  await serveRankThread(runThreadRank);
} else if (process.env[RANK_PROCESS_VARIABLE] !== undefined && process.send !== undefined) {
  const { runSocketRank } = await import('./rank/run-socket-rank.js');
  serveRank(runSocketRank);
} else if (process.env[PROBE_VARIABLE] !== undefined && process.send !== undefined) {
  await probeAdapters();
} else {
  const { trainCommand } = await import('./train-command.js');
  const entry = fileURLToPath(import.meta.url);
  // Devices and sockets are closed by now; whatever still holds the event loop must not hold the user.
  process.exit(await trainCommand(process.argv.slice(2), { entry }));
}
