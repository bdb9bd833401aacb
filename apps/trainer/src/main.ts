// Entry point of the command and, started by it, of a rank's process.

import { fileURLToPath } from 'node:url';
import { RANK_PROCESS_VARIABLE, serveRank } from './launch/rank-process.js';

if (process.env[RANK_PROCESS_VARIABLE] !== undefined && process.send !== undefined) {
  const { runSocketRank } = await import('./rank/run-socket-rank.js');
  serveRank(runSocketRank);
} else {
  const { trainCommand } = await import('./train-command.js');
  const entry = fileURLToPath(import.meta.url);
  // Devices and sockets are closed by now; whatever still holds the event loop must not hold the user.
  process.exit(await trainCommand(process.argv.slice(2), { entry }));
}
