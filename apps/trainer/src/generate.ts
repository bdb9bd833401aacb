// Entry point of the command `generate`.

import { fileURLToPath } from 'node:url';
import { allowRelaxedSimd } from './launch/relaxed-simd.js';
import { listenToSignals } from './listen-to-signals.js';

allowRelaxedSimd();

// A reader that has seen enough (| head) ends the text; nothing is left to tell anybody.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code !== 'EPIPE') {
    throw error;
  }
  process.exit(1);
});

const { generateCommand } = await import('./generate-command.js');
const { signal } = listenToSignals();
const code = await generateCommand(process.argv.slice(2), {
  input: process.stdin,
  out: process.stdout,
  err: process.stderr,
  env: process.env,
  entry: fileURLToPath(new URL('./main.js', import.meta.url)),
  signal,
});
// What still reads from standard input or a driver must not hold the user.
process.exit(code);
