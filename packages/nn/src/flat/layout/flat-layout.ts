// Where parameters lie inside a flat parameter. Pure arithmetic.

/**
 * Every parameter of a flat starts at a multiple of this many elements, and the flat ends at one.
 * In 16 bits they are 256 bytes, the alignment of WebGPU's storage bindings. The number is the same
 * on every device and in every dtype, so that ranks on CPUs and GPUs and files share one layout,
 * and so that no border between ranks cuts a run of 128 elements of a parameter.
 */
export const FLAT_ALIGN_ELEMENTS = 128;

/**
 * Where parameters lie in a flat one, counted in elements. Parameters of 200 and 5 elements have
 * the offsets 0 and 256 and the elementCount 384.
 */
export interface FlatLayout {
  /** The first element of each parameter, in order. */
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
  /** The elements of all parameters and of the padding after each. */
  readonly elementCount: number;
}

/** Lays out parameters of these sizes one after the other. */
export function flatLayout(sizes: readonly number[]): FlatLayout {
  const offsets: number[] = [];
  let end = 0;
  for (const size of sizes) {
    offsets.push(end);
    end += alignElements(size);
  }
  return { offsets, sizes, elementCount: end };
}

/** The smallest multiple of the alignment that is at least this number of elements. */
export function alignElements(elements: number): number {
  return Math.ceil(elements / FLAT_ALIGN_ELEMENTS) * FLAT_ALIGN_ELEMENTS;
}

/** A run of elements. */
export interface FlatPlace {
  readonly start: number;
  /** 0 where there are none. */
  readonly length: number;
}

/**
 * What a run of the whole contains of one parameter; `start` counts from the beginning of the run.
 */
export interface ParameterPiece extends FlatPlace {
  /** The element of the parameter that lies at `start`. */
  readonly first: number;
}

/** The part of parameter `index` that lies in a run of the whole. */
export function pieceIn(layout: FlatLayout, index: number, run: FlatPlace): ParameterPiece {
  const offset = layout.offsets[index]!;
  const clamp = (element: number) => Math.min(Math.max(element - run.start, 0), run.length);
  const start = clamp(offset);
  const length = clamp(offset + layout.sizes[index]!) - start;
  return { start, length, first: length === 0 ? 0 : run.start + start - offset };
}
