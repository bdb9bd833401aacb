// Mapped buffers between host and device: a ring of upload chunks, copied on in the encoder so that
// uploads keep their place among commands, and a pool of read-back buffers.

import { floorLog2, pow64 } from '@shardweave/dtypes/float64';
import type { Allocations } from './allocations.js';

const MAP_READ = 1;
const MAP_WRITE = 2;
const USAGE_UPLOAD = 0x0002 | 0x0004; // MAP_WRITE | COPY_SRC
const USAGE_DOWNLOAD = 0x0001 | 0x0008; // MAP_READ | COPY_DST

/** The bytes of a chunk: many small uploads, or a large one such as a batch or a gathered unit. */
const CHUNK_BYTES = 1024 * 1024;
/**
 * The bytes of chunks that are kept for reuse. A model's upload takes more, a step's does not; what
 * is beyond is destroyed once used.
 */
const KEEP_BYTES = 256 * 1024 * 1024;
/** The bytes of the smallest read-back buffer, for ids, losses and flags. */
const MIN_DOWNLOAD_BYTES = 256;

interface Chunk {
  readonly gpu: GPUBuffer;
  /** The mapped memory, while there is any. */
  bytes: Uint8Array | undefined;
  used: number;
  serial: number;
}

/** Where an upload's bytes lie, to be copied from in the encoder. */
export interface Upload {
  readonly source: GPUBuffer;
  readonly sourceOffset: number;
}

export class UploadRing {
  readonly #allocations: Allocations;
  /** The chunks that are mapped, to be filled. */
  #ready: Chunk[] = [];
  /** The chunks that have been filled in part since the last submit. */
  #filling: Chunk[] = [];
  /** The chunks that were submitted, which the device may still read. */
  #inFlight: Chunk[] = [];
  /** The chunks that were asked to be mapped again. */
  #mapping = new Set<Promise<void>>();
  #bytes = 0;
  #chunks = 0;

  constructor(allocations: Allocations) {
    this.#allocations = allocations;
  }

  get held(): { readonly bytes: number; readonly buffers: number } {
    return { bytes: this.#bytes, buffers: this.#chunks };
  }

  /** The bytes of chunks that wait for their submit to be known complete. */
  get inFlightBytes(): number {
    return this.#inFlight.reduce((sum, chunk) => sum + chunk.gpu.size, 0);
  }

  /**
   * Copies `bytes` into mapped memory. A device that is lost takes that memory back, at any moment;
   * then nothing is copied, and the next wait tells of the loss.
   */
  stage(bytes: Uint8Array): Upload {
    const chunk = this.#chunkFor(bytes.byteLength);
    const sourceOffset = chunk.used;
    const isDetached = chunk.bytes!.byteLength === 0;
    if (!isDetached) {
      chunk.bytes!.set(bytes, sourceOffset);
    }
    // Places are multiples of 16 and not of 4, because memcpy of aligned lines is faster.
    chunk.used = Math.ceil((sourceOffset + bytes.byteLength) / 16) * 16;
    return { source: chunk.gpu, sourceOffset };
  }

  /** Unmaps, before a submit, the chunks that its commands copy from. */
  close(serial: number): void {
    for (const chunk of this.#filling) {
      chunk.gpu.unmap();
      chunk.bytes = undefined;
      chunk.serial = serial;
      this.#inFlight.push(chunk);
    }
    this.#filling = [];
  }

  /**
   * Maps chunks again whose submit is known to be complete, or destroys those that are too many.
   */
  reclaim(completedSerial: number): void {
    const done = this.#inFlight.filter((chunk) => chunk.serial <= completedSerial);
    if (done.length === 0) {
      return;
    }
    this.#inFlight = this.#inFlight.filter((chunk) => chunk.serial > completedSerial);
    for (const chunk of done) {
      if (this.#bytes > KEEP_BYTES || this.#allocations.isLost(chunk.gpu)) {
        this.#drop(chunk);
      } else {
        this.#remap(chunk);
      }
    }
  }

  /** Destroys the chunks that wait to be filled. */
  trim(): void {
    for (const chunk of this.#ready.splice(0)) {
      this.#drop(chunk);
    }
  }

  async settled(): Promise<void> {
    while (this.#mapping.size > 0) {
      await Promise.allSettled(this.#mapping);
    }
  }

  destroy(): void {
    for (const chunk of [...this.#ready, ...this.#filling, ...this.#inFlight]) {
      chunk.gpu.destroy();
    }
    this.#ready = [];
    this.#filling = [];
    this.#inFlight = [];
    this.#bytes = 0;
    this.#chunks = 0;
  }

  #remap(chunk: Chunk): void {
    const mapping = chunk.gpu
      .mapAsync(MAP_WRITE)
      .then(
        () => {
          chunk.bytes = new Uint8Array(chunk.gpu.getMappedRange());
          chunk.used = 0;
          this.#ready.push(chunk);
        },
        () => this.#drop(chunk), // the device is lost or disposed
      )
      .finally(() => this.#mapping.delete(mapping));
    this.#mapping.add(mapping);
  }

  #drop(chunk: Chunk): void {
    chunk.gpu.destroy();
    this.#bytes -= chunk.gpu.size;
    this.#chunks -= 1;
  }

  #chunkFor(byteLength: number): Chunk {
    const current = this.#filling.findLast((chunk) => chunk.gpu.size - chunk.used >= byteLength);
    if (current !== undefined) {
      return current;
    }
    // The smallest chunk that fits is taken, so that large ones stay for large uploads.
    let best = -1;
    this.#ready.forEach((chunk, i) => {
      if (chunk.gpu.size < byteLength) {
        return;
      }
      if (best < 0 || chunk.gpu.size < this.#ready[best]!.gpu.size) {
        best = i;
      }
    });
    const chunk = best >= 0 ? this.#ready.splice(best, 1)[0]! : this.#create(byteLength);
    this.#filling.push(chunk);
    return chunk;
  }

  #create(byteLength: number): Chunk {
    const size = Math.max(CHUNK_BYTES, pow64(2, floorLog2(2 * byteLength - 1)));
    const gpu = this.#allocations.create({
      label: 'upload',
      size,
      usage: USAGE_UPLOAD,
      mappedAtCreation: true,
    });
    this.#bytes += size;
    this.#chunks += 1;
    return { gpu, bytes: new Uint8Array(gpu.getMappedRange()), used: 0, serial: 0 };
  }
}

/** A pool of read-back buffers by size class. One is out until its bytes were taken. */
export class DownloadPool {
  readonly #allocations: Allocations;
  readonly #free = new Map<number, GPUBuffer[]>();
  #bytes = 0;
  #buffers = 0;

  constructor(allocations: Allocations) {
    this.#allocations = allocations;
  }

  get held(): { readonly bytes: number; readonly buffers: number } {
    return { bytes: this.#bytes, buffers: this.#buffers };
  }

  take(byteLength: number): GPUBuffer {
    const size = Math.max(MIN_DOWNLOAD_BYTES, pow64(2, floorLog2(2 * byteLength - 1)));
    const known = this.#free.get(size)?.pop();
    if (known !== undefined) {
      return known;
    }
    const buffer = this.#allocations.create({ label: 'read-back', size, usage: USAGE_DOWNLOAD });
    this.#bytes += size;
    this.#buffers += 1;
    return buffer;
  }

  /** Takes an unmapped buffer back. */
  give(buffer: GPUBuffer): void {
    if (this.#bytes > KEEP_BYTES || this.#allocations.isLost(buffer)) {
      this.#drop(buffer);
      return;
    }
    const list = this.#free.get(buffer.size);
    if (list === undefined) {
      this.#free.set(buffer.size, [buffer]);
    } else {
      list.push(buffer);
    }
  }

  /** Destroys the buffers that are free. */
  trim(): void {
    for (const list of this.#free.values()) {
      for (const buffer of list) {
        this.#drop(buffer);
      }
    }
    this.#free.clear();
  }

  destroy(): void {
    this.trim();
  }

  #drop(buffer: GPUBuffer): void {
    this.#bytes -= buffer.size;
    this.#buffers -= 1;
    buffer.destroy();
  }
}

export { MAP_READ };
