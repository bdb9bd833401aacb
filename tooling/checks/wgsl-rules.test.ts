// The rules for kernels' texts, each on lines that break it and on lines beside them that don't.
// tooling/deno/deno.test.ts applies them to all kernels.

import { expect, it } from 'vitest';
import { wgslFaults } from './wgsl-rules.ts';

const LOOP = 'for (var i = 0u; i < 4u; i++) {';

it.each([
  ['a local', `${LOOP} var most: f32; }`],
  ['an array', `fn main() { loop { if (a) { var most: array<vec4<f32>, 2>; } } }`],
  ['a local of a second loop', `while (a) { } ${LOOP} ${LOOP} } var most: f32; }`],
])('%s without a value in a loop is a fault', (_, wgsl) => {
  expect(wgslFaults(wgsl)).toEqual([expect.stringMatching(/^line 1: var most .* has no value$/)]);
});

it.each([
  `fn f() { var most: f32; ${LOOP} most += 1.0; } var sum: f32; }`,
  `${LOOP} var most = array<vec4<f32>, 2>(); var sum: f32 = 0.0; }`,
  `fn f() { ${LOOP} } } var<workgroup> parts: array<f32, 4>; fn g() { var sum: f32; }`,
])('a local outside of loops, or with a value, is none: %s', (wgsl) => {
  expect(wgslFaults(wgsl)).toEqual([]);
});

it.each([
  ['inf', 'let is_lost = most == -inf();'],
  ['inf', 'let hidden = added == vec4<f32>(-inf());'],
  ['inf', 'let hidden = vec4(-(inf())) != added;'],
  ['inf', 'if (inf() > x) { }'],
  ['inf', 'let z = x - inf();'],
  ['nan', 'let z = 2.0 * nan();'],
  ['inf', 'let z = max(f(a, b), -inf());'],
])('%s() in a comparison or a sum is a fault: %s', (name, wgsl) => {
  expect(wgslFaults(wgsl)).toEqual([
    expect.stringMatching(`^line 1: ${name}\\(\\) is computed with: `),
  ]);
});

it.each([
  'fn inf() -> f32 { return bitcast<f32>(P.inf_bits); }',
  'fn nan() -> f32 { return bitcast<f32>(P.inf_bits | 0x400000u); }',
  'if (x == 0.0) { return -inf(); }',
  'return select(vec2<f32>(s + added, 1.0), vec2<f32>(-inf(), 0.0), is_lowest(added));',
  'return select(slope * 2.0, nan(), is_infinite(x));',
  'row_most[lane] = vec4<f32>(-inf()); // x == inf()',
])('a value that is handed on is none: %s', (wgsl) => {
  expect(wgslFaults(wgsl)).toEqual([]);
});

it.each([
  ['0x7f800000u', 'let z = bitcast<f32>(0x7f800000u);'],
  ['bits', 'var<private> bits: u32 = 0xffc00000u; fn f() -> f32 { return bitcast<f32>(bits); }'],
  ['BITS', 'const BITS = 2139095040u; fn f() -> f32 { return bitcast<f32>(BITS); }'],
])('%s is not finite, as a compiler sees', (name, wgsl) => {
  expect(wgslFaults(wgsl)).toEqual([
    `line 1: bitcast of ${name} is not finite, as a compiler sees`,
  ]);
});

it.each([
  'let z = bitcast<f32>(0x7f7fffffu);',
  'var<private> bits: u32 = 0x7f800000u; fn f() { bits = P.x; let z = bitcast<f32>(bits); }',
  'let bits = 0x7f800000u; let z = bitcast<u32>(bits);',
])('what a compiler does not know, or is finite, is none: %s', (wgsl) => {
  expect(wgslFaults(wgsl)).toEqual([]);
});

it('a number beyond f32, and one compared with itself, are faults', () => {
  const wgsl = 'let a = 3.5e38f;\nlet b = x != x || y.x != x || x != x[0] || 3.4e38 > x;';
  expect(wgslFaults(wgsl)).toEqual([
    'line 1: 3.5e38f is beyond the largest f32',
    'line 2: x != x is known where there is no NaN',
  ]);
});
