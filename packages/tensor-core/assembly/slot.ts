// These functions read a command: its arguments, and the part of the work that belongs to a chunk.

import { SLOT_ARGS } from './layout';

/** The address of this thread's scratch. */
export let scratchBase: usize = 0;

export function setScratch(base: usize): void {
  scratchBase = base;
}

/** Returns argument `i` as an unsigned word: an address, a size or a stride. */
@inline
export function arg(slot: usize, i: i32): u32 {
  return load<u32>(slot + ((SLOT_ARGS + i) << 2));
}

/** Returns argument `i` as a signed word: a code or a flag. */
@inline
export function argI(slot: usize, i: i32): i32 {
  return load<i32>(slot + ((SLOT_ARGS + i) << 2));
}

@inline
export function argF(slot: usize, i: i32): f32 {
  return load<f32>(slot + ((SLOT_ARGS + i) << 2));
}

/**
 * Returns the first element of a chunk, a multiple of `grain`. With chunk = chunks it returns the
 * end.
 */
export function chunkStart(total: u32, chunk: u32, chunks: u32, grain: u32): u32 {
  if (chunk == chunks) {
    return total;
  }
  const units = (<u64>total + grain - 1) / grain;
  return <u32>min<u64>(((units * chunk) / chunks) * grain, total);
}
