// Keeps the first failure of a device. Queued work never throws for the device's state: reads and
// syncs reject with what is kept here, after pending checks of shaders have told.

import {
  DeviceLostError,
  OutOfMemoryError,
  ShaderError,
  type ShaderMessage,
  StateError,
} from '../../../errors.js';

interface TrackedShader {
  readonly module: GPUShaderModule;
  readonly label: string;
  readonly source: string;
}

export class Fault {
  #error: Error | undefined;
  readonly #checks = new Set<Promise<void>>();

  get error(): Error | undefined {
    return this.#error;
  }

  /** Keeps the first failure, from which later ones follow. */
  raise(error: Error): void {
    this.#error ??= error;
  }

  raiseGpu(error: GPUError): void {
    this.raise(fromGpuError(error));
  }

  /** Tracks a check that may raise; `settled` waits for it. */
  track(check: Promise<void>): void {
    const tracked = check.finally(() => this.#checks.delete(tracked));
    this.#checks.add(tracked);
    tracked.catch(() => {});
  }

  /** The checks whose outcome is not known yet. */
  get checks(): ReadonlySet<Promise<void>> {
    return this.#checks;
  }

  get hasChecks(): boolean {
    return this.#checks.size > 0;
  }

  async settled(): Promise<void> {
    while (this.#checks.size > 0) {
      await Promise.allSettled(this.#checks);
    }
  }

  /**
   * Listens to the device for loss and for errors that no scope caught. `name` is the adapter's, by
   * which people find the card.
   */
  watch(device: GPUDevice, name: string): void {
    device.addEventListener('uncapturederror', (event) => {
      event.preventDefault?.();
      const error = fromGpuError(event.error);
      // A submit with a broken pipeline fails before the pipeline's own check says why.
      const earlier = [...this.#checks];
      if (earlier.length === 0) {
        this.raise(error);
      } else {
        this.track(Promise.allSettled(earlier).then(() => this.raise(error)));
      }
    });
    void device.lost.then(({ reason, message }) => {
      const why = message.replace(/\.?\s*$/, '.');
      const text = `webgpu: the device of ${name} was lost (${reason}): ${why}`;
      this.raise(new DeviceLostError(text, { reason }));
    });
  }

  /**
   * Waits for a pipeline's error scope; on failure raises a ShaderError with the compiler's
   * messages.
   */
  trackShader(scope: Promise<GPUError | null>, { module, label, source }: TrackedShader): void {
    this.track(
      scope.then(async (error) => {
        if (error === null || this.#error !== undefined) {
          return;
        }
        this.raise(await this.shaderError(error, { module, label, source }));
      }),
    );
  }

  /** The error of a pipeline that failed: the device's own failure where that is the reason. */
  async shaderError(
    error: { readonly message: string },
    { module, label, source }: TrackedShader,
  ): Promise<Error> {
    const { messages } = await module.getCompilationInfo().catch(() => ({ messages: [] }));
    if (this.#error !== undefined) {
      return this.#error;
    }
    if (isOutOfMemory(error)) {
      return new OutOfMemoryError(`webgpu: out of memory for kernel ${label}. ${error.message}`);
    }
    const listed: ShaderMessage[] = messages.map((message) => ({
      severity: message.type,
      message: message.message,
      line: message.lineNum,
      column: message.linePos,
    }));
    if (!listed.some((message) => message.severity === 'error')) {
      listed.push({ severity: 'error', message: error.message, line: 0, column: 0 });
    }
    return new ShaderError(label, listed, source);
  }
}

function fromGpuError(error: GPUError): Error {
  if (isOutOfMemory(error)) {
    return new OutOfMemoryError(`webgpu: out of memory. ${error.message}`);
  }
  return new StateError(`webgpu: the driver refused a command: ${error.message}`);
}

function isOutOfMemory(error: { readonly message: string }): boolean {
  return error.constructor.name === 'GPUOutOfMemoryError' || /out of memory/i.test(error.message);
}
