// Cuts a dispatch that is too long: drivers and browsers end what runs for seconds, and the device
// with it. A cut moves workgroups to another dispatch and nothing within one, so it
// changes no bits.

import type { Grid, Kernel } from './kernel.js';

/** The operations that a byte counts as, for kernels that state no number of operations. */
export const FLOPS_PER_BYTE = 8;

export interface GridPart {
  /** The first workgroup of each dimension. */
  readonly first: Grid;
  readonly grid: Grid;
  readonly flops: number;
}

/** What decides how a call is cut; see Dispatch. */
export interface CuttableCall {
  readonly grid: Grid;
  longestFlops?(): number;
}

/** Returns the parts of a call of `flops` operations, none above `maxFlops` if it can be cut. */
export function partsOfGrid(
  kernel: Kernel,
  call: CuttableCall,
  { flops, maxFlops }: { readonly flops: number; readonly maxFlops: number },
): readonly GridPart[] {
  const { grid } = call;
  if (!kernel.isCuttable || flops <= maxFlops) {
    return [{ first: [0, 0, 0], grid, flops }];
  }
  const isCutAlongX = flops / (grid[1] * grid[2]) > maxFlops;
  const counted = isCutAlongX ? (call.longestFlops?.() ?? flops) : flops;
  return cutGrid(grid, counted, maxFlops);
}

/** Cuts a grid of `flops` operations along z where that is enough, else along y, else along x. */
function cutGrid(grid: Grid, flops: number, maxFlops: number): GridPart[] {
  return cutAxis({ first: [0, 0, 0], grid, flops }, 2, maxFlops);
}

function cutAxis(part: GridPart, axis: number, maxFlops: number): GridPart[] {
  if (part.flops <= maxFlops || axis < 0) {
    return [part];
  }
  const count = part.grid[axis]!;
  const each = part.flops / count;
  const most = Math.max(1, Math.floor(maxFlops / each));
  const size = Math.ceil(count / Math.ceil(count / most)); // parts of about one size
  const parts: GridPart[] = [];
  for (let start = 0; start < count; start += size) {
    const length = Math.min(size, count - start);
    const first = withAxis(part.first, axis, part.first[axis]! + start);
    const grid = withAxis(part.grid, axis, length);
    parts.push(...cutAxis({ first, grid, flops: length * each }, axis - 1, maxFlops));
  }
  return parts;
}

function withAxis([x, y, z]: Grid, axis: number, value: number): Grid {
  return [axis === 0 ? value : x, axis === 1 ? value : y, axis === 2 ? value : z];
}
