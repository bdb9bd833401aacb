// Float64 twins of gates.

import { buildTwin, elementAt, type TwinArray } from './twin-array.js';

/** Returns f(gate) * up. Without `up`, gate and up are the halves of the last axis of `gate`. */
export function gateTwin(
  gate: TwinArray,
  { f, up }: { readonly f: (x: number) => number; readonly up: TwinArray | undefined },
): TwinArray {
  if (up !== undefined) {
    return { shape: gate.shape, data: gate.data.map((x, i) => f(x) * up.data[i]!) };
  }
  const cols = gate.shape.at(-1)! / 2;
  return buildTwin([...gate.shape.slice(0, -1), cols], (index) => {
    const [lead, c] = [index.slice(0, -1), index.at(-1)!];
    return f(elementAt(gate, [...lead, c])) * elementAt(gate, [...lead, cols + c]);
  });
}
