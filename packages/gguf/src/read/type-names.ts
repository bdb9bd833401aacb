// ggml's names of all its types, so that an error can name one that is not read.

/** By the format's numbers. */
const NAMES: Readonly<Record<number, string>> = {
  ...{ 0: 'f32', 1: 'f16', 2: 'q4_0', 3: 'q4_1', 6: 'q5_0', 7: 'q5_1', 8: 'q8_0', 9: 'q8_1' },
  ...{ 10: 'q2_K', 11: 'q3_K', 12: 'q4_K', 13: 'q5_K', 14: 'q6_K', 15: 'q8_K' },
  ...{ 16: 'iq2_xxs', 17: 'iq2_xs', 18: 'iq3_xxs', 19: 'iq1_s', 20: 'iq4_nl', 21: 'iq3_s' },
  ...{ 22: 'iq2_s', 23: 'iq4_xs', 24: 'i8', 25: 'i16', 26: 'i32', 27: 'i64', 28: 'f64' },
  ...{ 29: 'iq1_m', 30: 'bf16', 34: 'tq1_0', 35: 'tq2_0', 39: 'mxfp4', 40: 'nvfp4' },
};

/** The name of a type by its number, such as 'q4_K'; of an unknown one 'type 99'. */
export function typeName(id: number): string {
  return NAMES[id] ?? `type ${id}`;
}
