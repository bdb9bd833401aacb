// Rows of numbers in 8 bits: `block` numbers of a row share a scale, and a word w stands for
// (w - 128) * scale. A row whose length is no multiple of the block ends in words for zero.

/** The word that stands for zero. */
export const ZERO = 128;
/** The largest distance of a word from it; -128 is left out, so that both signs have as many. */
const LARGEST = 127;

interface RowSizes {
  readonly columns: number;
  readonly block: number;
}

/** The words of whole rows, with those that fill the last block of each. */
export function quantizedWords(values: Float32Array, sizes: RowSizes): Uint8Array {
  const { columns, block } = sizes;
  const blocks = Math.ceil(columns / block);
  const words = new Uint8Array((values.length / columns) * blocks * block).fill(ZERO);
  const scales = scalesOf(values, sizes);
  for (let i = 0; i < values.length; i++) {
    const column = i % columns;
    const row = (i - column) / columns;
    const scale = scales[row * blocks + Math.floor(column / block)]!;
    if (scale > 0) {
      words[row * blocks * block + column] = ZERO + Math.round(values[i]! / scale);
    }
  }
  return words;
}

/** The bytes of the scales of whole rows, one f32 a block. */
export function quantizedScales(values: Float32Array, sizes: RowSizes): Uint8Array {
  return new Uint8Array(scalesOf(values, sizes).buffer);
}

function scalesOf(values: Float32Array, { columns, block }: RowSizes): Float32Array<ArrayBuffer> {
  const blocks = Math.ceil(columns / block);
  const scales = new Float32Array((values.length / columns) * blocks);
  for (let i = 0; i < values.length; i++) {
    const column = i % columns;
    const at = ((i - column) / columns) * blocks + Math.floor(column / block);
    scales[at] = Math.max(scales[at]!, Math.abs(values[i]!) / LARGEST);
  }
  return scales;
}
