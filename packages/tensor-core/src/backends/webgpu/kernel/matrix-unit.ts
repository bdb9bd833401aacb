// What the matrix units of an adapter multiply, where WebGPU offers them: an experimental feature
// of Dawn. Kernels want f16 operands with f32 sums. bf16 has no type in WGSL, so it has no matrix
// units either.

/** What the matrix units of a device multiply at once, m x k by k x n, and by how many lanes. */
export interface MatrixUnit {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly lanes: number;
  /**
   * Whether a kernel must ask for subgroups of so many lanes, where the device has several sizes.
   */
  readonly asksForLanes: boolean;
}

export const MATRIX_FEATURE = 'chromium-experimental-subgroup-matrix';
export const LANES_FEATURE = 'subgroup-size-control';

interface MatrixConfig {
  readonly componentType: string;
  readonly resultComponentType: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
}

/** The most rows, columns or depth of a unit by which the tiles of matrix kernels divide. */
const MOST_ROWS = 32;
const USUAL_LANES = 32;

/**
 * The largest unit that tiles can be made of; none where the device lacks a feature or a subgroup's
 * size.
 */
export function matrixUnitOf(
  info: GPUAdapterInfo,
  features: GPUSupportedFeatures,
): MatrixUnit | undefined {
  const needed = ['shader-f16', 'subgroups', MATRIX_FEATURE];
  if (!needed.every((feature) => features.has(feature))) {
    return undefined;
  }
  const { subgroupMinSize = 0, subgroupMaxSize = 0 } = info;
  const asksForLanes = subgroupMinSize !== subgroupMaxSize;
  if (asksForLanes && !features.has(LANES_FEATURE)) {
    return undefined;
  }
  const lanes = Math.min(Math.max(USUAL_LANES, subgroupMinSize), subgroupMaxSize);
  const { subgroupMatrixConfigs = [] } = info as {
    readonly subgroupMatrixConfigs?: readonly MatrixConfig[];
  };
  const [unit] = subgroupMatrixConfigs
    .filter(
      ({ componentType, resultComponentType, M, N, K }) =>
        componentType === 'f16' &&
        resultComponentType === 'f32' &&
        [M, N, K].every((extent) => extent % 4 === 0 && MOST_ROWS % extent === 0),
    )
    .map(({ M, N, K }) => ({ m: M, n: N, k: K, lanes, asksForLanes }))
    .sort((x, y) => y.m * y.n * y.k - x.m * x.n * x.k || y.m - x.m);
  return unit;
}
