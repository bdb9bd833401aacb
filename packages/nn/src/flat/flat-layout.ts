// Where parameters lie inside a flat one. Pure arithmetic.

/**
 * Every parameter starts at a multiple of this many elements, and a flat parameter ends at one. In
 * 16 bits they are 256 bytes, the alignment of WebGPU's storage bindings. The number is the same on
 * every device and in every dtype, so that ranks on CPU and GPU, and files, share one layout, and
 * no run of 128 elements of a parameter is cut by a border between ranks.
 */
export const FLAT_ALIGN_ELEMENTS = 128;

/** A flat parameter's map, in elements. */
export interface FlatLayout {
  /** First element of each parameter, in order. */
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
  /** The parameters, and the pads behind them. */
  readonly elementCount: number;
}

/** Lays out parameters of the given sizes one behind the other. */
export function flatLayout(sizes: readonly number[]): FlatLayout {
  const offsets: number[] = [];
  let end = 0;
  for (const size of sizes) {
    offsets.push(end);
    end += alignElements(size);
  }
  return { offsets, sizes, elementCount: end };
}

/** The least multiple of the alignment that holds so many elements. */
export function alignElements(elements: number): number {
  return Math.ceil(elements / FLAT_ALIGN_ELEMENTS) * FLAT_ALIGN_ELEMENTS;
}

/** A run of elements. */
export interface FlatPlace {
  readonly start: number;
  /** 0 where there are none. */
  readonly length: number;
}

/** What a run of the whole has of one parameter; `start` counts from the run's. */
export interface ParameterPiece extends FlatPlace {
  /** Element of the parameter that lies at `start`. */
  readonly first: number;
}

/** The part of parameter `index` inside a run of the whole. */
export function pieceIn(layout: FlatLayout, index: number, run: FlatPlace): ParameterPiece {
  const offset = layout.offsets[index]!;
  const clamp = (element: number) => Math.min(Math.max(element - run.start, 0), run.length);
  const start = clamp(offset);
  const length = clamp(offset + layout.sizes[index]!) - start;
  return { start, length, first: length === 0 ? 0 : run.start + start - offset };
}
