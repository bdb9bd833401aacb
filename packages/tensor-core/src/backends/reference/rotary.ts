// Rotary position embedding (Su et al., 2021). The columns j and j + half of a head are the
// coordinates of a point that turns by position * frequency j.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function rotary(call: KernelCalls['rotary'], open: Open): void {
  const { tokens, heads, numRotated, half, period, offset, isInverse } = call;
  const x = open(call.x); // [tokens, heads, 2 * half]
  const out = open(call.out); // [tokens, heads, 2 * half]
  const words = open(call.frequencies); // [2, half]
  const positions = call.positions && open(call.positions); // [period]
  for (let t = 0; t < tokens; t++) {
    const position = positions === undefined ? offset + (t % period) : positions.get(t % period);
    for (let j = 0; j < half; j++) {
      const angle = angleOf(position, words.get(j), words.get(half + j)) * (isInverse ? -1 : 1);
      const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
      for (let h = 0; h < heads; h++) {
        const at = (t * heads + h) * 2 * half + j;
        const [a, b] = [x.get(at), x.get(at + half)];
        const isRotated = h < numRotated;
        out.set(at, isRotated ? a * cos - b * sin : a);
        out.set(at + half, isRotated ? b * cos + a * sin : b);
      }
    }
  }
}

/** Returns an angle in radians. Whole turns are dropped while the angle is still an integer. */
function angleOf(position: number, high: number, low: number): number {
  const frequency = (BigInt(high) << 32n) | BigInt(low);
  const turns = BigInt.asUintN(64, BigInt(position | 0) * frequency);
  return (Number(turns) / 2 ** 64) * 2 * Math.PI;
}
