// Looks for a GPU in a process of its own: a broken driver may crash whoever loads it, and Dawn writes
// to the terminal of a process that only wanted to know.

import { fork } from 'node:child_process';
import type { DeviceChoice } from '../run-config.js';

/** Set in the environment of the probe, by which main.ts knows that it is one. */
export const PROBE_VARIABLE = 'SHARDWEAVE_ADAPTER_PROBE';
/** A driver that takes longer to be found is none to prefer; a quick one takes 0.2 s. */
const PROBE_MS = 15_000;

/** The devices with `auto` replaced: a GPU if there is one, else the cpu. */
export async function resolveDevices(
  devices: readonly DeviceChoice[],
  entry: string,
): Promise<readonly DeviceChoice[]> {
  if (!devices.includes('auto')) {
    return devices;
  }
  const found = (await hasHardwareAdapter(entry)) ? 'webgpu' : 'cpu';
  return devices.map((device) => (device === 'auto' ? found : device));
}

/** Whether the script `entry`, run as a probe, finds a hardware adapter. */
function hasHardwareAdapter(entry: string): Promise<boolean> {
  return new Promise((resolve) => {
    const child = fork(entry, [], {
      env: { ...process.env, [PROBE_VARIABLE]: '1' },
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    const timer = setTimeout(() => child.kill('SIGKILL'), PROBE_MS);
    let isFound = false;
    child.on('message', (message) => {
      isFound = message === true;
      child.kill('SIGKILL'); // Dawn's threads may outlive the answer
    });
    child.on('error', () => resolve(false));
    child.on('exit', () => {
      clearTimeout(timer);
      resolve(isFound);
    });
  });
}

/** The probe itself. Whatever fails (no package, no driver) means that there is no GPU to prefer. */
export async function probeAdapters(): Promise<void> {
  let isFound = false;
  try {
    const { openNodeGpu } = await import('@shardweave/tensor-core/webgpu-node');
    const { listAdapters } = await import('@shardweave/tensor-core/webgpu');
    isFound = (await listAdapters(openNodeGpu())).some(({ isSoftware }) => !isSoftware);
  } catch {}
  process.send?.(isFound, undefined, undefined, () => process.exit(0));
}
