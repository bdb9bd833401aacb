// The types of hardware-kernels.mjs, for tests that read the texts.

export interface KernelText {
  readonly label: string;
  readonly wgsl: string;
}

export interface HardwareKernelsOptions {
  /** The exports of tensor-core's entries `testing`, `webgpu` and `webgpu-node`. */
  readonly packages?: object;
  /** The features that the device offers. */
  readonly features?: readonly string[];
  readonly kernelProfile?: 'hardware' | 'software';
  /** The tiles with which products are made, besides those of the cases. By default all of them. */
  readonly tiles?: readonly string[];
}

export function hardwareKernels(options?: HardwareKernelsOptions): Promise<KernelText[]>;
