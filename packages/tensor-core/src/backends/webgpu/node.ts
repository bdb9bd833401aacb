// WebGPU in Node through Dawn's bindings. The only file that imports the npm package `webgpu`, an
// optional peer; a Vulkan driver must be installed.

import { create, globals } from 'webgpu';
import { checkOptions } from '../../check-options.js';
import { TEXT } from '../../options.js';
import { type AdapterDescription, describeAdapter, infoOf, nameOf } from './adapters.js';
import { dawnFlags } from './dawn-flags.js';
import { SPINS } from './queue/waiter.js';

export type { AdapterDescription } from './adapters.js';
export { fileTuningStore } from './tuning/file-tuning-store.js';

/** Objects kept for the life of the process, since Dawn crashes once a device's is collected. */
const instances: GPU[] = [];

/** Options of openNodeGpu, which loads the optional peer `webgpu` (Dawn). */
export interface NodeGpuOptions {
  /**
   * Dawn's flags, such as ['backend=null']. They come on top of ours, which let adapters offer
   * matrix units and leave timestamps exact; a toggle that is named here counts before ours.
   */
  readonly flags?: readonly string[];
  /**
   * A part of a device's name, in its own case. Dawn takes the first adapter whose name holds it,
   * and rejects a request where there is none, with the names that there are. See listNodeAdapters.
   */
  readonly adapter?: string;
}

/**
 * Dawn's GPU object, to pass to createWebGpuBackend. Each call makes one, which lives as long as
 * the process. Timestamps are not quantized, which no page could read here.
 */
export function openNodeGpu(options: NodeGpuOptions = {}): GPU {
  checkOptions<NodeGpuOptions>('openNodeGpu', options, {
    flags: {
      expected: 'an array of strings',
      holds: (value) => Array.isArray(value) && value.every((flag) => typeof flag === 'string'),
    },
    adapter: TEXT,
  });
  const { flags = [], adapter } = options;
  const { GPUDevice } = globals as { GPUDevice: { prototype: object } };
  Object.defineProperty(GPUDevice.prototype, SPINS, { value: true });
  const gpu = create([
    ...dawnFlags(flags),
    ...(adapter === undefined ? [] : [`adapter=${adapter}`]),
  ]);
  instances.push(gpu);
  return gpu;
}

/**
 * An adapter of this machine, as Dawn's binding for Node knows it. `device` is its name as the
 * driver writes it, such as `NVIDIA H100 PCIe`, of which a GPUAdapter shows `nvidia-h100-pcie`.
 */
export interface NodeAdapter extends AdapterDescription {
  /**
   * Whether `openNodeGpu({ adapter: device })` opens it. Where an earlier adapter's name holds this
   * one's, as that of a second card of one model does, Dawn opens the earlier one.
   */
  readonly isReachable: boolean;
}

/** A name that no adapter has: Dawn then tells all names. */
const NOBODY = 'no adapter has this name';
const LISTED = /^ \* backend: '[^']*', name: '(.*)'$/gm;

/**
 * All adapters that Dawn finds, in the order of its preference: discrete cards, integrated ones,
 * drivers that compute on the CPU. Those that are not reachable are described by the adapter that
 * is opened in their place. It opens each, whose driver then stays loaded.
 */
export async function listNodeAdapters(): Promise<NodeAdapter[]> {
  const names = await deviceNames();
  const opened = new Map<string, GPUAdapter | null>();
  const found: NodeAdapter[] = [];
  for (const [i, device] of names.entries()) {
    const first = names.findIndex((name) => name.includes(device));
    const name = names[first]!;
    const adapter =
      opened.get(name) ?? (await openNodeGpu({ adapter: name }).requestAdapter(PREFERRED));
    opened.set(name, adapter);
    if (adapter !== null) {
      const { vendor, architecture, description } = infoOf(adapter);
      const words = nameOf({ vendor, architecture, device, description });
      const isReachable = first === i;
      found.push({ ...describeAdapter(adapter), name: words, device, isReachable });
    }
  }
  return found;
}

/** The preference of createWebGpuBackend, by which adapters are in the order in which it looks. */
const PREFERRED = { powerPreference: 'high-performance' } as const;

/**
 * The devices' names in Dawn's order, which it tells in the error about a name that is not there.
 * Where a version of it words that otherwise, there is the one that it prefers.
 */
async function deviceNames(): Promise<string[]> {
  try {
    await openNodeGpu({ adapter: NOBODY }).requestAdapter(PREFERRED);
    return []; // no adapter at all
  } catch (error) {
    const names = [...(error as Error).message.matchAll(LISTED)].map(([, name]) => name!);
    const preferred = names.length > 0 ? null : await openNodeGpu().requestAdapter(PREFERRED);
    return preferred === null ? names : [describeAdapter(preferred).device];
  }
}
