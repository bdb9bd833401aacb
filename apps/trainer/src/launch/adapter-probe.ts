// Looks for a GPU in a process of its own, because a broken driver may crash the process that loads
// it, and Dawn writes to the terminal.

import { fork } from 'node:child_process';
import type { NodeAdapter } from '@shardweave/tensor-core/webgpu-node';
import type { DeviceChoice } from '../device-choice.js';

/** Set in the environment of the probe, by which main.ts recognizes it. */
export const PROBE_VARIABLE = 'SHARDWEAVE_ADAPTER_PROBE';
/**
 * The time limit of the probe, which usually takes 0.2 s. A driver that takes longer is not worth
 * preferring.
 */
const PROBE_MS = 15_000;

/** The devices, with `auto` replaced by a GPU if there is one, else by the cpu. */
export async function resolveDevices(
  devices: readonly DeviceChoice[],
  entry: string,
): Promise<readonly DeviceChoice[]> {
  if (!devices.includes('auto')) {
    return devices;
  }
  const { adapters } = await findAdapters(entry);
  const found = adapters.some(({ isSoftware }) => !isSoftware) ? 'webgpu' : 'cpu';
  return devices.map((device) => (device === 'auto' ? found : device));
}

/** What a probe has found, hardware first; --device takes their indices. */
export interface FoundAdapters {
  readonly adapters: readonly NodeAdapter[];
  /** Why there is no adapter, in the words of whatever failed. */
  readonly problem?: string;
}

/** The adapters that the script `entry`, run as a probe, finds. */
export function findAdapters(entry: string): Promise<FoundAdapters> {
  return new Promise((resolve) => {
    const child = fork(entry, [], {
      env: { ...process.env, [PROBE_VARIABLE]: '1' },
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
    });
    let found: FoundAdapters = { adapters: [], problem: 'The driver crashed the process.' };
    const timer = setTimeout(() => {
      found = { adapters: [], problem: `No answer within ${PROBE_MS / 1000} s.` };
      child.kill('SIGKILL');
    }, PROBE_MS);
    child.on('message', (message) => {
      found = message as FoundAdapters;
      child.kill('SIGKILL'); // Dawn's threads may outlive the answer
    });
    child.on('error', ({ message }) => resolve({ adapters: [], problem: message }));
    child.on('exit', () => {
      clearTimeout(timer);
      resolve(found);
    });
  });
}

/** Runs as the probe. Any failure (no package, no driver) means that there is no GPU to prefer. */
export async function probeAdapters(): Promise<void> {
  let found: FoundAdapters;
  try {
    const { listNodeAdapters } = await import('@shardweave/tensor-core/webgpu-node');
    found = { adapters: await listNodeAdapters() };
  } catch (error) {
    found = { adapters: [], problem: (error as Error).message };
  }
  process.send?.(found, undefined, undefined, () => process.exit(0));
}
