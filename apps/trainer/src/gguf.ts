// Entry point of the command `gguf`.

import { ggufCommand } from './gguf-command.js';

process.exitCode = await ggufCommand(process.argv.slice(2), {
  out: process.stdout,
  err: process.stderr,
  env: process.env,
});
