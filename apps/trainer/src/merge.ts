// Entry point of the command `merge`.

import { allowRelaxedSimd } from './launch/relaxed-simd.js';

allowRelaxedSimd();

const { mergeCommand } = await import('./merge-command.js');
process.exitCode = await mergeCommand(process.argv.slice(2), {
  out: process.stdout,
  err: process.stderr,
  env: process.env,
});
