// Rotary position embedding. The columns j and j + half of a head are the coordinates of a point
// that turns by the angle position * frequency j. A call moves 8 bytes per f32 element. Each
// element computes its own sine and cosine, which costs less than reading them from a table.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { MULTIPLY_HIGH, TURNS } from '../elementwise/angles.js';
import { map } from '../elementwise/elementwise.js';

export function rotary(ctx: KernelContext, call: KernelCalls['rotary']): void {
  const { x, frequencies, positions, out, tokens, heads, numRotated, half, period } = call;
  const row = heads * 2 * half;
  const blocks = { strides: [row, row], rows: tokens, op: 'rotary' };
  eachRowBlock(ctx, [x, out], blocks, ([xPart, outPart], firstToken) => {
    map(ctx, {
      name: `rotary${call.isInverse ? ' inverse' : ''} ${positions === undefined ? 'of a range' : 'of positions'}`,
      inputs: { x: xPart!, frequencies, ...(positions === undefined ? {} : { positions }) },
      out: outPart!,
      integers: {
        half,
        heads,
        num_rotated: numRotated,
        period,
        offset: call.offset >>> 0,
        first_token: firstToken,
      },
      isWhole: true,
      helpers: `${INTEGER_DIVIDE}${MULTIPLY_HIGH}${TURNS}`,
      value: `let head_row = divide(i, 2u * P.half);
  let column = i - head_row * 2u * P.half;
  let token = divide(head_row, P.heads);
  let own = load_x(i);
  if (head_row - token * P.heads >= P.num_rotated) { return own; }
  let global = token + P.first_token;
  let place = global - divide(global, P.period) * P.period;
  let position = ${positions === undefined ? 'P.offset + place' : 'bitcast<u32>(load_positions(place))'};
  let isSecond = column >= P.half;
  let j = select(column, column - P.half, isSecond);
  let high = load_frequencies(j);
  let low = load_frequencies(P.half + j);
  // The high word of the product with a frequency of two words, modulo whole turns. A negative
  // position is 2^32 too much as an unsigned one.
  var phase = position * high + multiply_high(position, low);
  if ((position & 0x80000000u) != 0u) { phase -= low; }
  let other = load_x(select(i + P.half, i - P.half, isSecond));
  let sine = turn_sine(phase);
  return fma(own, turn_cosine(phase), select(-other * sine, other * sine, isSecond${call.isInverse ? ' == false' : ''}));`,
    });
  });
}
