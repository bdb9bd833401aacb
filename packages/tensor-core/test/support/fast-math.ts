// Texts of kernels as a compiler may rewrite them that assumes that there are no NaNs and no
// infinities: WGSL allows it, and Metal's fast math does it. See Note [by bits] in wgsl.ts.

/** A call that gives infinity, or minus infinity, in one lane or in four. */
const INFINITE = String.raw`(?:vec4<f32>\()?-?inf\(\)\)?`;
const OPERAND = String.raw`\w+(?:\[\w+\])?`;

/** What may be written in place of what, each where no number is NaN or infinite. */
const FOLDS: readonly (readonly [RegExp, (...match: string[]) => string])[] = [
  // Nothing equals an infinity, in one lane and in four.
  [new RegExp(`${OPERAND} == -?inf\\(\\)`, 'g'), () => 'false'],
  [new RegExp(`${OPERAND} == ${INFINITE}`, 'g'), () => 'vec4<bool>()'],
  // An infinity that the compiler sees is any number.
  [/bitcast<f32>\((?:nan_bits|inf_bits|0x7f\w+)\)/g, () => '0.0'],
  // Equal numbers have the difference 0. The infinities' is NaN.
  [/\b(before) == (most)\b/g, (_, a, b) => `${a} - ${b} == 0.0`],
  // What is not larger is smaller or equal.
  [/\b([bvs]) > (a|r|most)\b/g, (_, a, b) => `!(${a} <= ${b})`],
  [/\b([bv]) < ([ar])\b/g, (_, a, b) => `!(${a} >= ${b})`],
  [/\bx < 0\.0\b/g, () => '!(x >= 0.0)'],
];

/** Makes a device compile each text as rewritten by all of FOLDS. */
export function foldTexts(device: GPUDevice): void {
  const create = device.createShaderModule.bind(device);
  device.createShaderModule = ({ code, ...rest }) =>
    create({ ...rest, code: FOLDS.reduce((text, [from, to]) => text.replace(from, to), code) });
}
