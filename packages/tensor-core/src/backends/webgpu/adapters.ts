// Finding and describing adapters, and asking a device for the limits and features kernels use.

import { DeviceLostError } from '../../errors.js';
import { LANES_FEATURE, MATRIX_FEATURE } from './kernel/matrix-unit.js';

/** What is known of an adapter: `doctor` shows it, and `--device auto` decides by it. */
export interface AdapterDescription {
  /** The names of device and driver, for people. */
  readonly name: string;
  /** The name of the device alone, such as `nvidia-h100-pcie`, which browsers leave empty. */
  readonly device: string;
  readonly vendor: string;
  readonly architecture: string;
  /** Whether it is a driver that computes on the CPU (lavapipe, SwiftShader, WARP). */
  readonly isSoftware: boolean;
  readonly hasShaderF16: boolean;
  readonly hasSubgroups: boolean;
  readonly hasTimestamps: boolean;
  readonly maxBufferBytes: number;
  readonly maxBindingBytes: number;
}

export interface AdapterOptions {
  readonly powerPreference?: 'low-power' | 'high-performance';
}

const SOFTWARE_NAMES = /llvmpipe|lavapipe|swiftshader|software|warp|basic render/i;

/**
 * The adapters a GPU object gives for each power preference, without repeats; hardware first. A
 * page is given no more than that, and listNodeAdapters has all of a machine in Node.
 */
export async function listAdapters(gpu: GPU): Promise<AdapterDescription[]> {
  const found = new Map<string, AdapterDescription>();
  for (const options of [
    { powerPreference: 'high-performance' as const },
    { powerPreference: 'low-power' as const },
    { forceFallbackAdapter: true },
  ]) {
    const adapter = await gpu.requestAdapter(options);
    if (adapter === null) {
      continue;
    }
    const description = describeAdapter(adapter);
    found.set(JSON.stringify(description), description);
  }
  return [...found.values()].sort((a, b) => Number(a.isSoftware) - Number(b.isSoftware));
}

/**
 * Describes an adapter for people and for the choice of a device: its name, whether it is a driver
 * that computes on the CPU, its features, and its limits in bytes.
 */
export function describeAdapter(adapter: GPUAdapter): AdapterDescription {
  const { features, limits } = adapter;
  const info = infoOf(adapter);
  return {
    name: nameOf(info),
    device: info.device,
    vendor: info.vendor,
    architecture: info.architecture,
    isSoftware: isSoftwareAdapter(info),
    hasShaderF16: features.has('shader-f16'),
    hasSubgroups: features.has('subgroups'),
    hasTimestamps: features.has('timestamp-query'),
    maxBufferBytes: limits.maxBufferSize,
    maxBindingBytes: limits.maxStorageBufferBindingSize,
  };
}

/** The description of an adapter that tells nothing of itself. */
export const UNKNOWN_ADAPTER = {
  vendor: '',
  architecture: '',
  device: '',
  description: 'unknown adapter',
  isFallbackAdapter: false,
} as GPUAdapterInfo;

/** Browsers had adapters before these had an `info`, which was then without isFallbackAdapter. */
export function infoOf(adapter: GPUAdapter): GPUAdapterInfo {
  const { info, isFallbackAdapter } = adapter as GPUAdapter & {
    readonly info?: GPUAdapterInfo;
    readonly isFallbackAdapter?: boolean;
  };
  if (info !== undefined && info.isFallbackAdapter !== undefined) {
    return info;
  }
  const { vendor, architecture, device, description } = info ?? UNKNOWN_ADAPTER;
  const names = { vendor, architecture, device, description };
  return { ...names, isFallbackAdapter: isFallbackAdapter === true } as GPUAdapterInfo;
}

/** The names of device and driver, for people. Firefox leaves all of them empty. */
export function nameOf(
  info: Pick<GPUAdapterInfo, 'vendor' | 'architecture' | 'device' | 'description'>,
): string {
  const words = [info.device, info.description].filter((word) => word !== '');
  const family = [info.vendor, info.architecture].filter((word) => word !== '');
  return words.join(', ') || family.join(' ') || UNKNOWN_ADAPTER.description;
}

export function isSoftwareAdapter(info: GPUAdapterInfo): boolean {
  return info.isFallbackAdapter || SOFTWARE_NAMES.test(`${info.device} ${info.description}`);
}

/** @throws {DeviceLostError} when there is none. */
export async function requestAdapter(
  gpu: GPU | undefined,
  options: AdapterOptions & { readonly allowSoftware: boolean },
): Promise<GPUAdapter> {
  if (gpu === undefined) {
    throw new DeviceLostError(
      'webgpu: expected navigator.gpu, but this host has none. In Node open one with openNodeGpu() from "@shardweave/tensor-core/webgpu-node".',
      { reason: 'no-gpu' },
    );
  }
  const { powerPreference = 'high-performance', allowSoftware } = options;
  const adapter =
    (await gpu.requestAdapter({ powerPreference })) ??
    (allowSoftware ? await gpu.requestAdapter({ forceFallbackAdapter: true }) : null);
  if (adapter === null) {
    throw new DeviceLostError(
      'webgpu: expected an adapter, got none. Is a Vulkan driver installed (Mesa 25 or later)?',
      { reason: 'no-adapter' },
    );
  }
  if (!allowSoftware && isSoftwareAdapter(infoOf(adapter))) {
    throw new DeviceLostError(
      `webgpu: expected a hardware adapter, got ${nameOf(infoOf(adapter))}. Pass allowSoftware, or use the cpu device, which is faster.`,
      { reason: 'software-adapter' },
    );
  }
  return adapter;
}

/** Requests a device with the adapter's own limits for what kernels use, and no others. */
export async function requestDevice(adapter: GPUAdapter): Promise<GPUDevice> {
  const wanted = ['subgroups', 'timestamp-query', 'shader-f16', MATRIX_FEATURE, LANES_FEATURE];
  const { limits } = adapter;
  return adapter.requestDevice({
    label: 'shardweave',
    requiredFeatures: wanted.filter((feature) => adapter.features.has(feature)) as GPUFeatureName[],
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxStorageBuffersPerShaderStage: Math.min(limits.maxStorageBuffersPerShaderStage, 10),
      maxComputeInvocationsPerWorkgroup: Math.min(limits.maxComputeInvocationsPerWorkgroup, 1024),
      maxComputeWorkgroupSizeX: Math.min(limits.maxComputeWorkgroupSizeX, 1024),
      maxComputeWorkgroupSizeY: Math.min(limits.maxComputeWorkgroupSizeY, 1024),
      maxComputeWorkgroupStorageSize: Math.min(limits.maxComputeWorkgroupStorageSize, 32768),
    },
  });
}
