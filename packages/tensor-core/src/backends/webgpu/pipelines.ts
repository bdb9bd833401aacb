// Compiled kernels by their text, with explicit bind group layouts: binding 0 is the parameters (a
// uniform buffer with a dynamic offset), the others are storage buffers.

import type { Fault } from './fault.js';
import { type Kernel, PARAM_BYTES } from './kernel.js';

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
  readonly #layouts = new Map<string, GPUBindGroupLayout>();

  constructor(device: GPUDevice, fault: Fault) {
    this.#device = device;
    this.#fault = fault;
  }

  get count(): number {
    return this.#byText.size;
  }

  /** The kernel of a spec; `key` names the spec, so that text is only made once. */
  get(key: string, build: () => Kernel): CompiledKernel {
    let compiled = this.#byKey.get(key);
    if (compiled === undefined) {
      compiled = this.#compile(build());
      this.#byKey.set(key, compiled);
    }
    return compiled;
  }

  #compile(kernel: Kernel): CompiledKernel {
    const known = this.#byText.get(kernel.wgsl);
    if (known !== undefined) {
      return known;
    }
    const { label, wgsl } = kernel;
    const layout = this.#layout(kernel);
    const device = this.#device;
    device.pushErrorScope('validation');
    const module = device.createShaderModule({ label, code: wgsl });
    const pipeline = device.createComputePipeline({
      label,
      layout: device.createPipelineLayout({ label, bindGroupLayouts: [layout] }),
      compute: { module, entryPoint: 'main' },
    });
    this.#fault.trackShader(device.popErrorScope(), { module, label, source: wgsl });
    const compiled = { kernel, pipeline, layout };
    this.#byText.set(wgsl, compiled);
    return compiled;
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
