// Loaded before the command (`NODE_OPTIONS=--import`), this takes the GPU from one rank's process
// in the middle of its run, once: its device is destroyed as work is submitted, behind the step
// that the test names. Environment: LOSE_RANK (left out where one process has all ranks),
// LOSE_STEP, LOSE_METRICS (the run's metrics.jsonl), LOSE_MARK (a file that says that it is done).

import { existsSync, readFileSync, writeFileSync } from 'node:fs';

const { LOSE_RANK, LOSE_STEP, LOSE_METRICS, LOSE_MARK, SHARDWEAVE_RANK_PROCESS } = process.env;

function isDue() {
  if (existsSync(LOSE_MARK) || !existsSync(LOSE_METRICS)) {
    return false;
  }
  return readFileSync(LOSE_METRICS, 'utf8').split('\n').length > Number(LOSE_STEP);
}

if (SHARDWEAVE_RANK_PROCESS === LOSE_RANK) {
  const { globals } = await import('webgpu');
  const { prototype } = globals.GPUAdapter;
  const request = prototype.requestDevice;
  prototype.requestDevice = async function (...args) {
    const device = await request.apply(this, args);
    const { queue } = device;
    const submit = queue.submit;
    const lossy = (...commands) => {
      submit.apply(queue, commands);
      if (isDue()) {
        writeFileSync(LOSE_MARK, '');
        device.destroy();
      }
    };
    Object.defineProperty(queue, 'submit', { value: lossy, configurable: true });
    Object.defineProperty(device, 'queue', { value: queue });
    return device;
  };
}
