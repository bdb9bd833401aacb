// Op cases of ops that move elements. Sizes are odd, so that 16-bit rows end inside words.

import type { DType } from '@shardweave/dtypes';
import { broadcastTo, cat, reshape, slice, split, transpose } from '../../ops/shape.js';
import type { Tensor } from '../../tensor.js';
import { type OpCase, opCase } from '../kit/op-check.js';
import type { FloatDType } from '../kit/op-tolerance.js';
import { broadcastTwin, catTwin, reshapeTwin, sliceTwin, transposeTwin } from '../twins/shape.js';
import type { TwinArray } from '../twins/twin-array.js';

type Shape = readonly number[];
interface Move {
  readonly name: string;
  readonly shapes: readonly Shape[];
  readonly op: (inputs: readonly Tensor[]) => Tensor | readonly Tensor[];
  readonly twin: (inputs: readonly TwinArray[]) => TwinArray | readonly TwinArray[];
}

const DTYPES: readonly DType[] = ['f32', 'f16', 'bf16', 'i32', 'u32'];

const MOVES: readonly Move[] = [
  reshapeMove([3, 5, 7], [15, 7]),
  reshapeMove([63], [7, -1], [7, 9]),
  reshapeMove([], [1, 1]),
  reshapeMove([7], [7]),
  transposeMove([5, 7]),
  transposeMove([3, 5, 7], [2, 0, 1]),
  transposeMove([3, 1, 7], [1, 2, 0]),
  transposeMove([2, 3, 2, 3], [0, 2, 1, 3]),
  broadcastMove([7, 1], [3, 7, 5]),
  broadcastMove([], [63]),
  broadcastMove([5], [3, 5]),
  sliceMove([5, 7], 0, 1, 4),
  sliceMove([5, 7], 1, 2, 5),
  sliceMove([3, 5, 7], 1, 1, 2),
  sliceMove([1, 5, 7], 1, 1, 4),
  sliceMove([7], 0, 3, 3),
  splitMove([7, 3], 0, [1, 4, 2]),
  splitMove([3, 9], 1, [3, 1, 5]),
  splitMove([3, 9], -1, [9]),
  catMove(
    [
      [1, 7],
      [3, 7],
      [2, 7],
    ],
    0,
  ),
  catMove(
    [
      [3, 1],
      [3, 7],
      [3, 3],
    ],
    1,
  ),
  catMove(
    [
      [3, 2],
      [3, 4],
    ],
    1,
  ),
  catMove(
    [
      [3, 5, 1],
      [3, 2, 1],
    ],
    1,
  ),
  catMove([[7]], 0),
  catMove(
    [
      [0, 3],
      [2, 3],
    ],
    0,
  ),
];

export function shapeOpCases(): OpCase[] {
  return [
    ...MOVES.flatMap((move) => DTYPES.map((dtype) => moveCase(move, dtype))),
    ...(['f16', 'bf16'] as const).map(chainCase),
  ];
}

function moveCase({ name, shapes, op, twin }: Move, dtype: DType): OpCase {
  const isInteger = dtype === 'i32' || dtype === 'u32';
  return opCase(`${name} ${dtype}`, {
    dtype: isInteger ? 'f32' : (dtype as FloatDType),
    outDType: dtype,
    inputs: shapes.map((shape) => ({
      shape,
      dtype,
      ...(isInteger ? { values: { low: 0, high: 1e6 } } : {}),
    })),
    op,
    twin,
  });
}

/** Takes a slice that begins and ends inside a word, which further ops read. */
function chainCase(dtype: FloatDType): OpCase {
  return opCase(`slices inside words, moved on ${dtype}`, {
    dtype,
    inputs: [{ shape: [7, 3] }],
    op: ([x]) => {
      const { device } = x!;
      return device.scope(() => {
        const middle = slice(x!, { axis: 0, start: 1, end: 4 });
        return cat([transpose(middle), broadcastTo(reshape(middle, [1, 9]), [3, 9])], { axis: 1 });
      });
    },
    twin: ([x]) => {
      const middle = sliceTwin(x!, 0, 1, 4);
      const wide = broadcastTwin(reshapeTwin(middle, [1, 9]), [3, 9]);
      return catTwin([transposeTwin(middle, [1, 0]), wide], 1);
    },
    roundings: 2, // two gradients are added
  });
}

function reshapeMove(from: Shape, to: Shape, resolved: Shape = to): Move {
  return {
    name: `reshape ${text(from)} to ${text(to)}`,
    shapes: [from],
    op: ([x]) => reshape(x!, to),
    twin: ([x]) => reshapeTwin(x!, resolved),
  };
}

function transposeMove(shape: Shape, axes?: readonly number[]): Move {
  return {
    name: `transpose ${text(shape)} by ${axes === undefined ? 'default' : text(axes)}`,
    shapes: [shape],
    op: ([x]) => transpose(x!, axes),
    twin: ([x]) => transposeTwin(x!, axes ?? [1, 0]),
  };
}

function broadcastMove(from: Shape, to: Shape): Move {
  return {
    name: `broadcastTo ${text(from)} to ${text(to)}`,
    shapes: [from],
    op: ([x]) => broadcastTo(x!, to),
    twin: ([x]) => broadcastTwin(x!, to),
  };
}

function sliceMove(shape: Shape, axis: number, start: number, end: number): Move {
  return {
    name: `slice ${text(shape)} axis ${axis} from ${start} to ${end}`,
    shapes: [shape],
    op: ([x]) => slice(x!, { axis, start, end }),
    twin: ([x]) => sliceTwin(x!, axis, start, end),
  };
}

function splitMove(shape: Shape, axis: number, lengths: readonly number[]): Move {
  const positive = axis < 0 ? axis + shape.length : axis;
  return {
    name: `split ${text(shape)} axis ${axis} into ${text(lengths)}`,
    shapes: [shape],
    op: ([x]) => split(x!, { axis, lengths }),
    twin: ([x]) => {
      let start = 0;
      return lengths.map((length) => {
        start += length;
        return sliceTwin(x!, positive, start - length, start);
      });
    },
  };
}

function catMove(shapes: readonly Shape[], axis: number): Move {
  return {
    name: `cat ${shapes.map(text).join(', ')} along ${axis}`,
    shapes,
    op: (parts) => cat(parts, { axis }),
    twin: (parts) => catTwin(parts, axis),
  };
}

function text(shape: Shape): string {
  return `[${shape.join(', ')}]`;
}
