// WebGPU refuses one buffer bound for reading and writing, and overlapping writable bindings. Where
// views share a buffer with an output, all but the first output go through copies in scratch.

import { byteSize } from '@shardweave/dtypes';
import type { View } from '../../../view.js';
import type { Kernel } from './kernel.js';

/** The bytes at whose multiples storage bindings start (WebGPU's default limit). */
export const BINDING_ALIGNMENT = 256;

/** The indices of the bindings that need a copy. */
export function clashesOf(kernel: Kernel, views: readonly View[]): number[] {
  if (views.length !== kernel.bindings.length) {
    throw new RangeError(
      `${kernel.label}: ${kernel.bindings.length} bindings, ${views.length} views`,
    );
  }
  if (areApart(views)) {
    return [];
  }
  const clashing: number[] = [];
  const seen: { view: View; isWrite: boolean }[] = [];
  // Outputs come first, so that they stay in place.
  for (const isWrite of [true, false]) {
    kernel.bindings.forEach((binding, i) => {
      if ((binding.access === 'read_write') !== isWrite) {
        return;
      }
      const view = views[i]!;
      const clashes = seen.some(
        (earlier) =>
          earlier.isWrite &&
          earlier.view.buffer === view.buffer &&
          (!isWrite || overlapsAligned(earlier.view, view)),
      );
      if (clashes) {
        clashing.push(i);
      } else {
        seen.push({ view, isWrite });
      }
    });
  }
  return clashing;
}

/** Whether each view has a buffer of its own, as most dispatches' have. */
function areApart(views: readonly View[]): boolean {
  for (let i = 1; i < views.length; i++) {
    for (let j = 0; j < i; j++) {
      if (views[i]!.buffer === views[j]!.buffer) {
        return false;
      }
    }
  }
  return true;
}

/** The whole words that a view lies in. */
export function wordsOf(view: View): { readonly start: number; readonly bytes: number } {
  const start = view.byteOffset - (view.byteOffset % 4);
  const end = Math.ceil((view.byteOffset + view.size * byteSize(view.dtype)) / 4) * 4;
  return { start, bytes: end - start };
}

function overlapsAligned(a: View, b: View): boolean {
  const start = (view: View) => view.byteOffset - (view.byteOffset % BINDING_ALIGNMENT);
  const end = (view: View) => wordsOf(view).start + wordsOf(view).bytes;
  return start(a) < end(b) && start(b) < end(a);
}
