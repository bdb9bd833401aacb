// The command `doctor`: tells what this machine offers to the other commands, and what to do where
// it could offer more; and what is in the cache of tokens.

import { execFile } from 'node:child_process';
import { arch, availableParallelism, platform, totalmem } from 'node:os';
import { promisify } from 'node:util';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend, findNativeProducts } from '@shardweave/tensor-core/cpu';
import type { NodeAdapter } from '@shardweave/tensor-core/webgpu-node';
import { cacheDirectory } from '../data/token-cache.js';
import { flag } from '../flags/flag.js';
import { fileOrNone, onOff } from '../flags/flag-kinds.js';
import { formatBytes } from '../format.js';
import { type FoundAdapters, findAdapters } from '../launch/adapter-probe.js';
import { productMs } from '../rank/measure-compute.js';
import { defineCommand } from './define-command.js';
import { clearCache, listCache, listingText } from './doctor-cache.js';

/** Dawn's first adapter is the one that a rank gets that names none. */
const OPENS =
  '--device webgpu takes the first; webgpu:INDEX, or webgpu: and a part of a name, another.';

/** Everything that was found, as JSON. */
export interface Diagnosis {
  readonly node: string;
  readonly system: string;
  readonly cores: number;
  readonly memoryBytes: number;
  readonly freeBytes: number;
  /** The cpu device: a description of its instructions, and its numeric class. */
  readonly cpu: { readonly description: string; readonly numericClass: string };
  /** A library for its products, and its speed as a multiple of wasm's; undefined without one. */
  readonly products?: { readonly library: string; readonly timesWasm: number } | undefined;
  readonly webgpu: FoundAdapters;
  /** The first line of `mpirun --version`. */
  readonly mpirun?: string | undefined;
}

/** The command `doctor`. */
export const doctor = defineCommand({
  name: 'doctor',
  description:
    'Tells what this machine offers, and what is missing. It changes nothing without --clear-cache.',
  flags: {
    json: flag(onOff, false, ['--json', 'all of it, as JSON']),
    // True stands for the directory that train takes without --cache.
    cache: flag(fileOrNone, undefined, [
      '--cache [DIR]',
      'list the tokens of data that are kept for later runs instead',
    ]),
    clearCache: flag(fileOrNone, undefined, [
      '--clear-cache [DIR]',
      'remove those that no run uses',
    ]),
  },
  examples: [
    { line: 'doctor', says: 'devices, drivers, memory, and what to do where one is missing' },
    { line: 'doctor --json', says: 'to be put into a bug report' },
    { line: 'doctor --cache', says: 'which texts have tokens on this disk, and how many bytes' },
  ],
  run: async ({ json, cache, clearCache: cleared }, { out, env, entry }) => {
    const directoryOf = (given: string | true) =>
      cacheDirectory(given === true ? undefined : given, env);
    if (cleared !== undefined) {
      out.write(await clearCache(directoryOf(cleared)));
    }
    if (cache !== undefined) {
      const listing = await listCache(directoryOf(cache), env);
      out.write(json ? `${JSON.stringify(listing, null, 2)}\n` : listingText(listing));
    }
    if (cache !== undefined || cleared !== undefined) {
      return 0;
    }
    const found = await examine(entry);
    out.write(json ? `${JSON.stringify(found, null, 2)}\n` : diagnosisText(found));
    return 0;
  },
});

async function examine(entry: string): Promise<Diagnosis> {
  const backend = await createCpuBackend({ threads: 1 });
  const { description } = backend.info;
  const device = new Device(backend);
  const numericClass = await device.numericClass();
  device.dispose();
  await backend.dispose();
  return {
    node: process.versions.node,
    system: `${platform()} ${arch()}`,
    cores: availableParallelism(),
    memoryBytes: totalmem(),
    freeBytes: process.availableMemory(),
    cpu: { description, numericClass },
    products: await timeProducts(),
    webgpu: await findAdapters(entry),
    mpirun: await mpirunVersion(),
  };
}

/** Times products of 512 x 512 x 512 by the library and in wasm, in turns: the least of five. */
async function timeProducts(): Promise<Diagnosis['products']> {
  let library: string;
  try {
    library = (await findNativeProducts()).name;
  } catch {
    return undefined;
  }
  const kinds = ['wasm', 'native'] as const;
  const backends = await Promise.all(
    kinds.map((products) => createCpuBackend({ threads: 1, products })),
  );
  const least = backends.map(() => Number.POSITIVE_INFINITY);
  for (let round = 0; round < 6; round++) {
    for (const [i, backend] of backends.entries()) {
      const ms = await productMs(backend, 512);
      // The first compiles and loads.
      least[i] = round === 0 ? least[i]! : Math.min(least[i]!, ms);
    }
  }
  await Promise.all(backends.map((backend) => backend.dispose()));
  return { library, timesWasm: Number((least[0]! / least[1]!).toFixed(1)) };
}

async function mpirunVersion(): Promise<string | undefined> {
  try {
    const { stdout } = await promisify(execFile)('mpirun', ['--version']);
    return stdout.split('\n')[0];
  } catch {
    return undefined;
  }
}

/** Describes `found` for people; the last part has a line for each thing that is missing. */
export function diagnosisText(found: Diagnosis): string {
  const { webgpu, cpu, products } = found;
  const missing = missingOf(found);
  const sections: [string, readonly string[]][] = [
    [
      'Machine',
      [
        `Node ${found.node}, ${found.system}`,
        `${found.cores} cores, ${formatBytes(found.freeBytes)} of ${formatBytes(found.memoryBytes)} free`,
      ],
    ],
    [
      'Device cpu (WebAssembly, always there)',
      [
        cpu.description,
        `numeric class ${cpu.numericClass}`,
        ...(products ? [`products: ${products.library}, ${products.timesWasm} times wasm`] : []),
      ],
    ],
    [
      'Device webgpu (Dawn)',
      webgpu.adapters.length === 0
        ? [`none: ${webgpu.problem ?? 'Dawn accepts no driver of this machine.'}`]
        : webgpu.adapters.flatMap(adapterLines).concat(OPENS),
    ],
    ['Several machines', [found.mpirun ?? 'no mpirun']],
    [missing.length === 0 ? 'Nothing is missing.' : 'What is missing', missing],
  ];
  return sections
    .map(([title, lines]) => [title, ...lines.map((line) => `  ${line}`)].join('\n'))
    .join('\n\n')
    .concat('\n');
}

function adapterLines(adapter: NodeAdapter, index: number): string[] {
  const { name, isSoftware, isReachable, hasShaderF16, hasSubgroups } = adapter;
  const { maxBufferBytes, maxBindingBytes } = adapter;
  const yes = (has: boolean) => (has ? 'yes' : 'no');
  const lines = [
    `${index}: ${name}, ${isSoftware ? 'software' : 'hardware'}`,
    `   16-bit shaders ${yes(hasShaderF16)}, subgroups ${yes(hasSubgroups)}, largest buffer ${formatBytes(maxBufferBytes)}, binding ${formatBytes(maxBindingBytes)}`,
  ];
  return isReachable
    ? lines
    : [...lines, '   Dawn opens the one of that name before it instead: docs/several-gpus.md'];
}

function missingOf({ webgpu, cpu, products, mpirun }: Diagnosis): string[] {
  const missing: string[] = [];
  if (!webgpu.adapters.some(({ isSoftware }) => !isSoftware)) {
    missing.push(
      'A hardware adapter: --device auto takes the cpu. With a GPU here install its driver (on Linux one with Vulkan, and libvulkan1), and the package webgpu where npm left it out.',
    );
  }
  if (!cpu.description.includes('relaxed')) {
    missing.push('Relaxed SIMD, with which the cpu device is faster: install Node 20 or later.');
  }
  if (products === undefined) {
    missing.push(
      'A library for products, with which the cpu device is up to twice as fast: install OpenBLAS (Debian: libopenblas0-pthread), and the package koffi where npm left it out.',
    );
  }
  if (mpirun === undefined) {
    missing.push('mpirun, for --transport mpi alone: install Open MPI (Debian: openmpi-bin).');
  }
  return missing;
}
