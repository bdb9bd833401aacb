// GPU times of single dispatches while a profiler listens, or of whole passes. Drivers may quantize
// them (65.5 us in Dawn by default), so short kernels can read as 0 and neighbors can share an
// instant.

import type { BackendTraceSink } from '../../../backend.js';
import type { DownloadPool } from './staging.js';
import type { WaitJob } from './waiter.js';

/** WebGPU's limit of queries in a set. */
const CAPACITY = 4096;
const QUERY_BYTES = 8;

export interface TimestampsParts {
  readonly downloads: DownloadPool;
  readonly sink: BackendTraceSink;
  readonly wait: (job: WaitJob) => void;
  /** Whether each dispatch has a pass, and so a time, of its own. */
  readonly isByKernel: boolean;
}

export class Timestamps {
  readonly isByKernel: boolean;
  readonly #parts: TimestampsParts;
  readonly #querySet: GPUQuerySet;
  readonly #resolved: GPUBuffer;
  #labels: string[] = [];
  /** Host minus device clock in ms: the smallest difference seen, since waits can only be late. */
  #clockOffsetMs = Number.POSITIVE_INFINITY;

  constructor(device: GPUDevice, parts: TimestampsParts) {
    this.isByKernel = parts.isByKernel;
    this.#parts = parts;
    this.#querySet = device.createQuerySet({ label: 'trace', type: 'timestamp', count: CAPACITY });
    this.#resolved = device.createBuffer({
      label: 'trace',
      size: CAPACITY * QUERY_BYTES,
      usage: 0x0200 | 0x0004, // QUERY_RESOLVE | COPY_SRC
    });
  }

  /** Returns the timestamps of the next pass, or undefined when the set is full. */
  next(label: string): GPUComputePassTimestampWrites | undefined {
    const i = 2 * this.#labels.length;
    if (i + 2 > CAPACITY) {
      return undefined;
    }
    this.#labels.push(label);
    return {
      querySet: this.#querySet,
      beginningOfPassWriteIndex: i,
      endOfPassWriteIndex: i + 1,
    };
  }

  /** Adds the read-back of this submit's times to its commands. */
  resolve(encoder: GPUCommandEncoder): { submitted(serial: number): void } | undefined {
    const labels = this.#labels;
    if (labels.length === 0) {
      return undefined;
    }
    this.#labels = [];
    const bytes = 2 * labels.length * QUERY_BYTES;
    const staging = this.#parts.downloads.take(bytes);
    encoder.resolveQuerySet(this.#querySet, 0, 2 * labels.length, this.#resolved, 0);
    encoder.copyBufferToBuffer(this.#resolved, 0, staging, 0, bytes);
    return {
      submitted: (serial) =>
        this.#parts.wait({
          staging,
          byteLength: bytes,
          serial,
          isQuiet: true,
          done: (data) => this.#report(labels, data),
          settled: () => this.#parts.downloads.give(staging),
          failed: () => {}, // reads and syncs report it
        }),
    };
  }

  destroy(): void {
    this.#querySet.destroy();
    this.#resolved.destroy();
  }

  #report(labels: readonly string[], data: Uint8Array): void {
    const times = new BigUint64Array(data.slice().buffer);
    const toMs = (i: number) => Number(times[i]!) / 1e6;
    const lastMs = toMs(times.length - 1);
    this.#clockOffsetMs = Math.min(this.#clockOffsetMs, performance.now() - lastMs);
    labels.forEach((name, i) => {
      const startMs = toMs(2 * i) + this.#clockOffsetMs;
      const endMs = Math.max(startMs, toMs(2 * i + 1) + this.#clockOffsetMs);
      this.#parts.sink({ name, track: 'device', startMs, endMs });
    });
  }
}
