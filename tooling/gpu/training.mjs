// Trains by the command, and appends each step to the rows as it is made.
//   node training.mjs ROWS FOLDER [flags of train]

import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { appendRow } from '../../bench/figures/rows.mjs';

const LOOK_MS = 200;
const PACKED = fileURLToPath(new URL('../../dist/main.js', import.meta.url));
const BUILT = fileURLToPath(new URL('../../apps/trainer/dist/main.js', import.meta.url));

const [rows, folder, ...flags] = process.argv.slice(2);
const out = join(folder, 'run');
const main = existsSync(PACKED) ? PACKED : BUILT;
const child = spawn(process.execPath, [main, 'train', '--quiet', '--out', out, ...flags], {
  stdio: ['ignore', 'inherit', 'inherit'],
});
const timer = setInterval(tellSteps, LOOK_MS);
let told = 0;
const code = await new Promise((resolve) => child.on('exit', (status) => resolve(status ?? 1)));
clearInterval(timer);
tellSteps();
const summary = join(out, 'summary.json');
if (existsSync(summary)) {
  const { params, device, numericClass, ranks } = JSON.parse(readFileSync(summary, 'utf8'));
  const peaks = (ranks ?? []).map((rank) => rank.peakBytes?.total);
  appendRow(rows, { params, device, numericClass, peaks });
}
process.exitCode = code;

/** Appends the lines that were written since the last look, but not one that is being written. */
function tellSteps() {
  const file = join(out, 'metrics.jsonl');
  const lines = existsSync(file) ? readFileSync(file, 'utf8').split('\n').slice(0, -1) : [];
  for (const line of lines.slice(told)) {
    const { step, loss, stepMs, tokensPerSecond } = JSON.parse(line);
    appendRow(rows, { step, loss, stepMs, tokensPerSecond });
  }
  told = lines.length;
}
