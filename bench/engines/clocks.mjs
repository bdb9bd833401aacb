// The clocks of an NVIDIA GPU, by the tool that its driver brings.

import { spawnSync } from 'node:child_process';

const QUERY = ['--query-gpu=clocks.sm,clocks.mem,power.draw', '--format=csv,noheader'];
let isMissing = false;

/** Such as `1980 MHz, 3201 MHz, 412 W`; undefined where there is no nvidia-smi. */
export function clocks() {
  if (isMissing) {
    return undefined;
  }
  const { status, stdout } = spawnSync('nvidia-smi', QUERY, { encoding: 'utf8', timeout: 5000 });
  isMissing = status !== 0;
  return isMissing ? undefined : stdout.trim().split('\n')[0];
}
