// What there is for a run: the memory of a device, and that of the host. What is beyond it fails for sure; what
// is close to it may fail all the same, for a heap with holes.

import { cpuBufferBytes } from '@shardweave/tensor-core';
import { formatBytes } from '../output/format.js';
import type { RunConfig } from '../run-config.js';
import type { DryRun } from './dry-run.js';

export interface Room {
  /** Most bytes of buffers on a rank's device; undefined: only the device knows. */
  readonly deviceBytes: number | undefined;
  /** Free memory of this host. */
  readonly hostBytes: number;
  /** Ranks that share it. */
  readonly ranksHere: number;
}

/** Above this part of its memory a device has room, but perhaps not in one piece. */
const TIGHT = 0.9;

/** What this machine has for ranks whose devices are of `kind`. */
export function roomHere(
  { threads, ranks, transport }: Pick<RunConfig, 'threads' | 'ranks' | 'transport'>,
  kind: 'cpu' | 'webgpu',
): Room {
  return {
    deviceBytes: kind === 'cpu' ? cpuBufferBytes({ threads }) : undefined,
    hostBytes: process.availableMemory(),
    ranksHere: transport === 'mpi' ? 1 : ranks, // those of mpirun may be on other hosts
  };
}

/** Bytes of this host that its ranks take: what rests there, and a cpu device's own memory. */
export function hostNeed({ hostBytes, bufferBytes }: DryRun, room: Room): number {
  return (hostBytes + (room.deviceBytes === undefined ? 0 : bufferBytes)) * room.ranksHere;
}

/** Why a run of this need can't be: a sentence, or undefined where it may be. */
export function complaintOf(run: DryRun, room: Room): string | undefined {
  const { bufferBytes } = run;
  const { deviceBytes, hostBytes, ranksHere } = room;
  if (deviceBytes !== undefined && bufferBytes > deviceBytes) {
    return `a rank takes ${formatBytes(bufferBytes)} on its device (${tagsOf(run)}), and one WebAssembly memory holds ${formatBytes(deviceBytes)}`;
  }
  const need = hostNeed(run, room);
  if (need > hostBytes) {
    const ranks = ranksHere === 1 ? 'the rank takes' : `${ranksHere} ranks take`;
    return `${ranks} ${formatBytes(need)} of this host's memory, of which ${formatBytes(hostBytes)} are free`;
  }
  return undefined;
}

/** Whether it fits, but a heap with holes may not have it. */
export function isTight(run: DryRun, room: Room): boolean {
  const { deviceBytes, hostBytes } = room;
  const isDeviceTight = deviceBytes !== undefined && run.bufferBytes > TIGHT * deviceBytes;
  return isDeviceTight || hostNeed(run, room) > TIGHT * hostBytes;
}

/** `parameter 2.9 GiB, gradient 2.9 GiB`: what is large at the peak. */
function tagsOf({ phases }: DryRun): string {
  const all = phases.map(({ bytes }) => bytes);
  const peak = all.reduce((most, bytes) => (bytes.total > most.total ? bytes : most));
  const { total, ...tags } = peak;
  return Object.entries(tags)
    .filter(([, bytes]) => bytes > total / 50)
    .sort(([, a], [, b]) => b - a)
    .map(([tag, bytes]) => `${tag} ${formatBytes(bytes)}`)
    .join(', ');
}
