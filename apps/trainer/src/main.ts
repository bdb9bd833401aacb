#!/usr/bin/env node
// Entry point of `shardweave` and, started by it, of its processes and threads.

import { readFileSync } from 'node:fs';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { openCommandProcess } from './command-process.js';
import { isTokenizeThread, serveTokenizeThread } from './data/tokenize-thread.js';
import { PROBE_VARIABLE, probeAdapters } from './launch/adapter-probe.js';
import { RANK_PROCESS_VARIABLE, serveRank } from './launch/rank-process.js';
import { isRankThread, serveRankThread } from './launch/rank-thread.js';
import { allowRelaxedSimd } from './launch/relaxed-simd.js';

allowRelaxedSimd();

if (isTokenizeThread()) {
  await serveTokenizeThread();
} else if (isRankThread()) {
  const { runThreadRank } = await import('./rank/run-apart.js');
  await serveRankThread(runThreadRank);
} else if (process.env[RANK_PROCESS_VARIABLE] !== undefined && process.send !== undefined) {
  const { runSocketRank } = await import('./rank/run-apart.js');
  serveRank(runSocketRank);
} else if (process.env[PROBE_VARIABLE] !== undefined && process.send !== undefined) {
  await probeAdapters();
} else {
  const listen = openCommandProcess();
  const { runCommand } = await import('./commands/run-command.js');
  const manifest = readFileSync(new URL('../package.json', import.meta.url), 'utf8');
  const code = await runCommand({
    args: process.argv.slice(2),
    input: process.stdin,
    out: process.stdout,
    err: process.stderr,
    env: process.env,
    entry: fileURLToPath(import.meta.url),
    listen,
    version: (JSON.parse(manifest) as { readonly version: string }).version,
  });
  // The stream tells of a write that failed in a later turn of the event loop. A command without a
  // run ends with that, with an exit code of its own.
  await nextTurn();
  // Devices and sockets are closed by now; nothing that still holds the event loop may keep the
  // user waiting.
  process.exit(code);
}
