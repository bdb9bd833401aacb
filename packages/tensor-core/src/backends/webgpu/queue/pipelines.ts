// Keeps compiled kernels by their text, with explicit bind group layouts: binding 0 is the
// parameters (a uniform buffer with a dynamic offset), the others are storage buffers.

import { LimitError } from '../../../errors.js';
import { type Kernel, PARAM_BYTES } from '../kernel/kernel.js';
import type { Fault } from './fault.js';

export interface CompiledKernel {
  readonly kernel: Kernel;
  readonly pipeline: GPUComputePipeline;
  readonly layout: GPUBindGroupLayout;
}

export class Pipelines {
  readonly #device: GPUDevice;
  readonly #fault: Fault;
  readonly #byText = new Map<string, CompiledKernel>();
  readonly #byKey = new Map<string, CompiledKernel>();
  /** The kernels that are being compiled, by text. */
  readonly #pending = new Map<string, Promise<void>>();
  readonly #layouts = new Map<string, GPUBindGroupLayout>();

  constructor(device: GPUDevice, fault: Fault) {
    this.#device = device;
    this.#fault = fault;
  }

  get count(): number {
    return this.#byText.size;
  }

  /** Returns the kernel of a spec. `key` names the spec, so that its text is made only once. */
  get(key: string, build: () => Kernel): CompiledKernel {
    let compiled = this.#byKey.get(key);
    if (compiled === undefined) {
      compiled = this.#compile(build());
      this.#byKey.set(key, compiled);
    }
    return compiled;
  }

  /**
   * Compiles kernels that are not yet, beside each other and without holding up the host. Waits for
   * those that another call prepares, too. Rejects with what the device failed with, else with the
   * first that failed, which ends nothing.
   */
  async prepare(kernels: ReadonlyMap<string, Kernel>): Promise<void> {
    for (const [key, kernel] of kernels) {
      const known = this.#byText.get(kernel.wgsl);
      if (known !== undefined) {
        this.#byKey.set(key, known);
      } else if (!this.#pending.has(kernel.wgsl)) {
        const pending = this.#prepareOne(kernel);
        this.#pending.set(kernel.wgsl, pending);
        const forget = () => void this.#pending.delete(kernel.wgsl);
        pending.then(forget, forget);
      }
    }
    const settled = await Promise.allSettled(this.#pending.values());
    const failed = settled.find((outcome) => outcome.status === 'rejected');
    if (this.#fault.error !== undefined || failed !== undefined) {
      throw this.#fault.error ?? failed!.reason;
    }
  }

  async #prepareOne(kernel: Kernel): Promise<void> {
    this.#requireBindings(kernel);
    const { wgsl, label } = kernel;
    const device = this.#device;
    device.pushErrorScope('validation');
    const { module, layout, descriptor } = this.#describe(kernel);
    const pending = device.createComputePipelineAsync(descriptor);
    // The pipeline tells the same, with its reason.
    device.popErrorScope().catch(() => {});
    try {
      const pipeline = await pending;
      if (!this.#byText.has(wgsl)) {
        this.#byText.set(wgsl, { kernel, pipeline, layout });
      }
    } catch (error) {
      throw await this.#fault.shaderError(error as Error, { module, label, source: wgsl });
    }
  }

  #compile(kernel: Kernel): CompiledKernel {
    const known = this.#byText.get(kernel.wgsl);
    if (known !== undefined) {
      return known;
    }
    this.#requireBindings(kernel);
    const { label, wgsl } = kernel;
    const device = this.#device;
    device.pushErrorScope('validation');
    const { module, layout, descriptor } = this.#describe(kernel);
    const pipeline = device.createComputePipeline(descriptor);
    this.#fault.trackShader(device.popErrorScope(), { module, label, source: wgsl });
    const compiled = { kernel, pipeline, layout };
    this.#byText.set(wgsl, compiled);
    return compiled;
  }

  /** The driver would refuse such a kernel later, and in words about its layout. */
  #requireBindings({ label, bindings }: Kernel): void {
    const most = this.#device.limits.maxStorageBuffersPerShaderStage;
    if (bindings.length > most) {
      throw new LimitError(
        `${label}: expected a kernel of at most ${most} storage buffers, got ${bindings.length}. Open the GPUDevice with requiredLimits.maxStorageBuffersPerShaderStage of 10, as createWebGpuBackend does where the adapter has as many.`,
      );
    }
  }

  #describe(kernel: Kernel): {
    readonly module: GPUShaderModule;
    readonly layout: GPUBindGroupLayout;
    readonly descriptor: GPUComputePipelineDescriptor;
  } {
    const { label, wgsl } = kernel;
    const device = this.#device;
    const layout = this.#layout(kernel);
    const module = device.createShaderModule({ label, code: wgsl });
    const descriptor = {
      label,
      layout: device.createPipelineLayout({ label, bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: 'main' },
    };
    return { module, layout, descriptor };
  }

  #layout(kernel: Kernel): GPUBindGroupLayout {
    const known = this.#layouts.get(kernel.layoutKey);
    if (known !== undefined) {
      return known;
    }
    const visibility = 4; // GPUShaderStage.COMPUTE, whose global Node lacks
    const layout = this.#device.createBindGroupLayout({
      label: `kernel ${kernel.layoutKey}`,
      entries: [
        {
          binding: 0,
          visibility,
          buffer: { type: 'uniform', hasDynamicOffset: true, minBindingSize: PARAM_BYTES },
        },
        ...kernel.bindings.map((b, i) => ({
          binding: i + 1,
          visibility,
          buffer: {
            type: b.access === 'read' ? ('read-only-storage' as const) : ('storage' as const),
          },
        })),
      ],
    });
    this.#layouts.set(kernel.layoutKey, layout);
    return layout;
  }
}
