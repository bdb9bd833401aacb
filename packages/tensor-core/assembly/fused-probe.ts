// This module has a single multiply-add, which tells the host whether the processor rounds it once.

import { madd } from './fuse';

export function multiplyAdd(a: f32, b: f32, c: f32): f32 {
  return f32x4.extract_lane(madd(f32x4.splat(a), f32x4.splat(b), f32x4.splat(c)), 0);
}
