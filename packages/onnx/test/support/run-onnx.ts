// Computes an ONNX graph in plain loops over float64, as the specification of its operators says.

import type { Numbers, ReadGraph, ReadNode } from './read-onnx.ts';

type Attributes = ReadNode['attributes'];
type Operator = (inputs: readonly Numbers[], attributes: Attributes) => Numbers;

/** The results of a graph by name. */
export function runOnnx(
  graph: ReadGraph,
  inputs: Readonly<Record<string, Numbers>>,
): Readonly<Record<string, Numbers>> {
  const values = new Map<string, Numbers>([...graph.tensors, ...Object.entries(inputs)]);
  for (const { operator, inputs: names, output, attributes } of graph.nodes) {
    const run = OPERATORS[operator];
    if (run === undefined) {
      throw new Error(`no operator ${operator}`);
    }
    const given = names.map((name) => values.get(name)!);
    values.set(output, run(given, attributes));
  }
  return Object.fromEntries(graph.outputs.map(({ name }) => [name, values.get(name)!]));
}

const OPERATORS: Readonly<Record<string, Operator>> = {
  Add: elementwise((a, b) => a + b),
  Sub: elementwise((a, b) => a - b),
  Mul: elementwise((a, b) => a * b),
  Div: elementwise((a, b) => a / b),
  Cast: ([x]) => x!,
  Erf: ([x]) => map(x!, erf),
  Tanh: ([x]) => map(x!, Math.tanh),
  Shape: ([x]) => ({ shape: [x!.shape.length], values: x!.shape }),
  Gather: ([x, ids], { axis }) => gather(x!, ids!, axis as number),
  // All that is asked for is rows from a first one on, along axis 0.
  Slice: ([x, first, end]) => {
    const width = sizeOf(x!.shape.slice(1));
    const [from, to] = [first!.values[0]!, end!.values[0]!];
    const values = x!.values.slice(from * width, to * width);
    return { shape: [to - from, ...x!.shape.slice(1)], values };
  },
  Unsqueeze: ([x, axes]) => {
    const shape = [...x!.shape];
    for (const axis of axes!.values) {
      shape.splice(axis, 0, 1);
    }
    return { shape, values: x!.values };
  },
  Reshape: ([x, sizes]) => {
    const shape = sizes!.values.map((size, axis) => (size === 0 ? x!.shape[axis]! : size));
    return { shape, values: x!.values };
  },
  Transpose: ([x], { perm }) => transpose(x!, perm as readonly number[]),
  Softmax: ([x]) =>
    rows(x!, (row) => {
      const most = Math.max(...row);
      const shares = row.map((value) => Math.exp(value - most));
      const sum = shares.reduce((all, share) => all + share, 0);
      return shares.map((share) => share / sum);
    }),
  LayerNormalization: ([x, weight, bias], { epsilon }) =>
    rows(x!, (row) => {
      const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
      const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
      const scale = 1 / Math.sqrt(variance + (epsilon as number));
      return row.map((value, i) => (value - mean) * scale * weight!.values[i]! + bias!.values[i]!);
    }),
  MatMul: ([a, b]) => matMul(a!, b!),
  MatMulNBits: ([a, words, scales], { N, K, block_size: block }) => {
    const [rowsOf, columns, size] = [N, K, block] as [number, number, number];
    const blocks = Math.ceil(columns / size);
    const decoded = Array.from({ length: columns * rowsOf }, (_, i) => {
      const [k, n] = [Math.floor(i / rowsOf), i % rowsOf];
      const word = words!.values[n * blocks * size + k]!;
      return (word - 128) * scales!.values[n * blocks + Math.floor(k / size)]!;
    });
    return matMul(a!, { shape: [columns, rowsOf], values: decoded });
  },
};

const sizeOf = (shape: readonly number[]) => shape.reduce((product, size) => product * size, 1);

function map(x: Numbers, each: (value: number) => number): Numbers {
  return { shape: x.shape, values: x.values.map(each) };
}

function rows(x: Numbers, each: (row: readonly number[]) => readonly number[]): Numbers {
  const width = x.shape.at(-1)!;
  const count = x.values.length / width;
  const values = Array.from({ length: count }, (_, row) =>
    each(x.values.slice(row * width, (row + 1) * width)),
  ).flat();
  return { shape: x.shape, values };
}

function elementwise(each: (a: number, b: number) => number): Operator {
  return ([a, b]) => {
    const rank = Math.max(a!.shape.length, b!.shape.length);
    const [shapeA, shapeB] = [a!, b!].map(({ shape }) => [
      ...new Array<number>(rank - shape.length).fill(1),
      ...shape,
    ]) as [number[], number[]];
    const shape = shapeA.map((size, axis) => Math.max(size, shapeB[axis]!));
    const values = Array.from({ length: sizeOf(shape) }, (_, i) =>
      each(a!.values[placeIn(shapeA, shape, i)]!, b!.values[placeIn(shapeB, shape, i)]!),
    );
    return { shape, values };
  };
}

/** The place in a tensor that is repeated to a shape, of an element there. */
function placeIn(own: readonly number[], shape: readonly number[], index: number): number {
  let [place, stride, rest] = [0, 1, index];
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    const at = rest % shape[axis]!;
    rest = (rest - at) / shape[axis]!;
    place += own[axis] === 1 ? 0 : at * stride;
    stride *= own[axis]!;
  }
  return place;
}

function gather(x: Numbers, ids: Numbers, axis: number): Numbers {
  const before = sizeOf(x.shape.slice(0, axis));
  const inner = sizeOf(x.shape.slice(axis + 1));
  const size = x.shape[axis]!;
  const values = Array.from({ length: before }, (_, outer) =>
    ids.values.map((id) => {
      const first = (outer * size + id) * inner;
      return x.values.slice(first, first + inner);
    }),
  ).flat(2);
  return { shape: [...x.shape.slice(0, axis), ...ids.shape, ...x.shape.slice(axis + 1)], values };
}

function transpose(x: Numbers, perm: readonly number[]): Numbers {
  const strides = x.shape.map((_, axis) => sizeOf(x.shape.slice(axis + 1)));
  const shape = perm.map((axis) => x.shape[axis]!);
  const values = x.values.map((_, index) => {
    let [place, rest] = [0, index];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const at = rest % shape[axis]!;
      rest = (rest - at) / shape[axis]!;
      place += at * strides[perm[axis]!]!;
    }
    return x.values[place]!;
  });
  return { shape, values };
}

/** Products of matrices in the last two dimensions. The second one may be a single matrix. */
function matMul(a: Numbers, b: Numbers): Numbers {
  const [m, k] = a.shape.slice(-2) as [number, number];
  const n = b.shape.at(-1)!;
  const matrices = a.values.length / (m * k);
  const step = b.shape.length === 2 ? 0 : k * n;
  const values: number[] = [];
  for (let matrix = 0; matrix < matrices; matrix++) {
    for (let row = 0; row < m; row++) {
      for (let column = 0; column < n; column++) {
        let sum = 0;
        for (let i = 0; i < k; i++) {
          const at = (matrix * m + row) * k + i;
          sum += a.values[at]! * b.values[matrix * step + i * n + column]!;
        }
        values.push(sum);
      }
    }
  }
  return { shape: [...a.shape.slice(0, -1), n], values };
}

/** The error function by its series, which converges everywhere; beyond 5 it is 1 to 11 digits. */
function erf(x: number): number {
  if (Math.abs(x) > 5) {
    return Math.sign(x);
  }
  let [term, sum] = [x, x];
  for (let n = 1; Math.abs(term) > 1e-16; n++) {
    term *= (-x * x) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}
