// What there is for a run: the memory of a device and of the host, and a disk. A run that needs
// more is sure to fail; one that needs nearly as much may fail too, because of fragmentation.

import { cpuBufferBytes } from '@shardweave/tensor-core';
import { bytesBelow, freeBytes } from '../files/disk-room.js';
import { formatBytes } from '../format.js';
import type { RunConfig } from '../run-config.js';
import type { DryRun } from './dry-run.js';

export interface Room {
  /** The most bytes of buffers on a rank's device; undefined where only the device knows. */
  readonly deviceBytes: number | undefined;
  /** The free memory of this host. */
  readonly hostBytes: number;
  /** The number of ranks that share it. */
  readonly ranksHere: number;
  /** Whether each of them has a process of its own. Default false. */
  readonly isApart?: boolean;
  /** The free bytes on the disk of --offload-dir; undefined without one. */
  readonly diskBytes?: number | undefined;
}

/** Above this part of its memory a device has room, but perhaps not in one piece. */
const TIGHT = 0.9;

/**
 * The bytes of a process beside its device: Node with its code, kernels and workers. Values that a
 * rank reads or gathers come on top while they are on their way: bench/reports/2026-11-23-lora-end.
 */
const PROCESS_BYTES = 100e6;

/** What this machine has for ranks whose devices are of `kind`. */
export function roomHere(
  config: Pick<RunConfig, 'threads' | 'ranks' | 'transport' | 'offloadDir'>,
  kind: 'cpu' | 'webgpu',
): Room {
  const { threads, ranks, transport, offloadDir } = config;
  return {
    deviceBytes: kind === 'cpu' ? cpuBufferBytes({ threads }) : undefined,
    hostBytes: process.availableMemory(),
    ranksHere: transport === 'mpi' ? 1 : ranks, // those of mpirun may be on other hosts
    isApart: transport === 'ws' || transport === 'mpi',
    diskBytes:
      offloadDir === undefined
        ? undefined
        : freeBytes(offloadDir) + bytesBelow(offloadDir, VALUE_FILE),
  };
}

/** A file of a disk store, which a run deletes that finds it. */
const VALUE_FILE = /^shardweave-\d+\.\d$/;

/**
 * The bytes of this host that its ranks take: what rests there, a cpu device's own memory, and
 * processes.
 */
export function hostNeed({ hostBytes, bufferBytes }: DryRun, room: Room): number {
  const { deviceBytes, ranksHere, isApart = false } = room;
  const ofDevice = deviceBytes === undefined ? 0 : bufferBytes;
  return (hostBytes + ofDevice + (isApart ? PROCESS_BYTES : 0)) * ranksHere;
}

/**
 * The reason why a run of this need is impossible, as a sentence; undefined where it is possible.
 */
export function complaintOf(run: DryRun, room: Room): string | undefined {
  const { bufferBytes } = run;
  const { deviceBytes, hostBytes, ranksHere, isApart, diskBytes = Number.POSITIVE_INFINITY } = room;
  if (deviceBytes !== undefined && bufferBytes > deviceBytes) {
    return `a rank takes ${formatBytes(bufferBytes)} on its device (${tagsOf(run)}), and one WebAssembly memory holds ${formatBytes(deviceBytes)}`;
  }
  const need = hostNeed(run, room);
  const ranks = ranksHere === 1 ? 'the rank takes' : `${ranksHere} ranks take`;
  const onDisk = run.diskBytes * ranksHere;
  if (onDisk > diskBytes) {
    return `${ranks} ${formatBytes(onDisk)} of the disk of --offload-dir, of which ${formatBytes(diskBytes)} are free: make room there, or give a directory on another disk`;
  }
  if (need > hostBytes) {
    const beside = isApart ? ` with ${formatBytes(PROCESS_BYTES)} of each process` : '';
    return `${ranks} ${formatBytes(need)} of this host's memory${beside}, of which ${formatBytes(hostBytes)} are free`;
  }
  return undefined;
}

/** Whether it fits, but so closely that fragmentation may make it fail. */
export function isTight(run: DryRun, room: Room): boolean {
  const { deviceBytes, hostBytes, ranksHere, diskBytes = Number.POSITIVE_INFINITY } = room;
  const isDeviceTight = deviceBytes !== undefined && run.bufferBytes > TIGHT * deviceBytes;
  const isDiskTight = run.diskBytes * ranksHere > TIGHT * diskBytes;
  return isDeviceTight || isDiskTight || hostNeed(run, room) > TIGHT * hostBytes;
}

/** The large tags at the peak, such as `parameter 2.9 GiB, gradient 2.9 GiB`. */
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
