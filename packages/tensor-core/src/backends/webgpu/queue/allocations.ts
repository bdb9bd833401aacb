// Makes every buffer of the device, and knows which of them the device had no memory for.
//
// Note [lost buffers]: createBuffer always returns a buffer, and an error scope tells a turn of the
// loop later that there was no memory for it. By then commands name it, and WebGPU drops a submit
// whole when one of its commands names a lost buffer. So until the scopes of new buffers have told,
// submits and bind groups are made in scopes of their own, and an error there that follows from a
// lost buffer does not end the device. It fails the waits for those submits, or the next wait where
// nobody waited for them. Later commands are refused the buffer by name, so later submits are whole
// again.

import { OutOfMemoryError } from '../../../errors.js';
import type { Fault } from './fault.js';
import { WebGpuBuffer } from './gpu-buffer.js';

interface Loss {
  readonly error: OutOfMemoryError;
  /** The last submit that may name a lost buffer. */
  readonly lastSerial: number;
  isTold: boolean;
}

export class Allocations {
  readonly #device: GPUDevice;
  readonly #fault: Fault;
  readonly #lost = new WeakSet<GPUBuffer>();
  readonly #relievers = new Set<() => void>();
  #numPending = 0;
  #nextId = 0;
  readonly #counted = new Set<WebGpuBuffer>();
  #liveBytes = 0;
  #loss: Loss | undefined;
  /**
   * The last submit of which commands are recorded, made or still open; the recorder counts them.
   */
  lastRecorded: () => number = () => 0;
  /** The bytes that are kept for transfers and reuse, for messages. */
  readonly #keptBytes: () => number;

  constructor(device: GPUDevice, fault: Fault, keptBytes: () => number) {
    this.#device = device;
    this.#fault = fault;
    this.#keptBytes = keptBytes;
  }

  onPressure(relieve: () => void): () => void {
    this.#relievers.add(relieve);
    return () => this.#relievers.delete(relieve);
  }

  /**
   * Makes a buffer, which may turn out to be lost.
   * @throws {OutOfMemoryError} where one that is mapped at once has no room on the host.
   */
  create(descriptor: GPUBufferDescriptor & { readonly label: string }): GPUBuffer {
    const device = this.#device;
    device.pushErrorScope('out-of-memory');
    let gpu: GPUBuffer | undefined;
    try {
      gpu = device.createBuffer(descriptor);
    } catch (cause) {
      if (!(cause instanceof RangeError)) {
        throw cause;
      }
      this.#relieve();
      throw this.#errorOf(descriptor, cause);
    } finally {
      this.#watch(device.popErrorScope(), gpu, descriptor);
    }
    return gpu;
  }

  /** Makes a buffer for operands of kernels, which `usage` counts until `remove`. */
  alloc(byteLength: number, label: string): WebGpuBuffer {
    const buffer = this.createStorage(Math.max(4, byteLength), label);
    this.#counted.add(buffer);
    this.#liveBytes += buffer.byteLength;
    return buffer;
  }

  /** Makes a buffer for operands of kernels that `usage` does not count. */
  createStorage(size: number, label: string): WebGpuBuffer {
    const usage = 0x0080 | 0x0004 | 0x0008; // STORAGE | COPY_SRC | COPY_DST
    const gpu = this.create({ label, size, usage });
    return new WebGpuBuffer(this.#nextId++, gpu, (buffer) => this.isLost(buffer));
  }

  /** Names a buffer of somebody else's. */
  borrow(gpu: GPUBuffer): WebGpuBuffer {
    return new WebGpuBuffer(this.#nextId++, gpu, () => false);
  }

  /** Counts a buffer no longer. Returns false for one that was not counted. */
  remove(buffer: WebGpuBuffer): boolean {
    const isCounted = this.#counted.delete(buffer);
    this.#liveBytes -= isCounted ? buffer.byteLength : 0;
    return isCounted;
  }

  usage(): { readonly bytes: number; readonly buffers: number } {
    return { bytes: this.#liveBytes, buffers: this.#counted.size };
  }

  /** Destroys the buffers that `usage` counts. */
  destroy(): void {
    for (const buffer of this.#counted) {
      buffer.gpu.destroy();
    }
    this.#counted.clear();
    this.#liveBytes = 0;
  }

  isLost(gpu: GPUBuffer): boolean {
    return this.#lost.has(gpu);
  }

  /** The failure that a wait for submit `serial` must tell; a quiet wait leaves it for others. */
  failureAt(serial: number, options: { readonly isQuiet: boolean }): Error | undefined {
    const loss = this.#loss;
    if (loss === undefined || (loss.isTold && serial > loss.lastSerial)) {
      return undefined;
    }
    if (!options.isQuiet) {
      loss.isTold = true;
    }
    return loss.error;
  }

  /**
   * Runs `encode`, part of submit `serial`; errors in it that follow from lost buffers are no
   * faults.
   */
  guard<T>(serial: number, encode: () => T): T {
    if (this.#numPending === 0 && serial > (this.#loss?.lastSerial ?? 0)) {
      return encode();
    }
    this.#device.pushErrorScope('validation');
    try {
      return encode();
    } finally {
      const scope = this.#device.popErrorScope();
      const allocated = [...this.#fault.checks];
      this.#fault.track(
        scope.then(async (error) => {
          if (error === null) {
            return;
          }
          await Promise.allSettled(allocated);
          if (serial > (this.#loss?.lastSerial ?? 0)) {
            this.#fault.raiseGpu(error);
          }
        }),
      );
    }
  }

  #watch(
    scope: Promise<GPUError | null>,
    gpu: GPUBuffer | undefined,
    descriptor: GPUBufferDescriptor,
  ): void {
    if (gpu === undefined) {
      scope.catch(() => {});
      return;
    }
    this.#numPending += 1;
    this.#fault.track(
      scope
        .then((error) => {
          if (error !== null) {
            this.#lose(gpu, this.#errorOf(descriptor, error));
          }
        })
        .finally(() => {
          this.#numPending -= 1;
        }),
    );
  }

  #lose(gpu: GPUBuffer, error: OutOfMemoryError): void {
    this.#lost.add(gpu);
    const lastSerial = this.lastRecorded();
    const untold = this.#loss?.isTold === false ? this.#loss.error : undefined;
    this.#loss = { error: untold ?? error, lastSerial, isTold: false };
    this.#relieve();
  }

  #relieve(): void {
    for (const relieve of this.#relievers) {
      relieve();
    }
  }

  #errorOf({ label, size }: GPUBufferDescriptor, cause: unknown): OutOfMemoryError {
    const live = this.#liveBytes;
    const reserved = live + this.#keptBytes();
    const detail = (cause as { readonly message?: string }).message?.split('\n')[0] ?? '';
    return new OutOfMemoryError(
      `webgpu: expected room for ${size} bytes (${label}), got none: ${live} are in use, ${reserved} held in all. ${detail} What was queued since may not have run. Hold less at once; the device goes on.`,
      { requestedBytes: size, liveBytes: live, reservedBytes: reserved, cause },
    );
  }
}
