// A short number that stands for a text or a list of numbers: the hash of Fowler, Noll and Vo,
// variant 1a. It detects accidents only, for it is easy to make two inputs with the same hash.

/** The hash of an empty input, with which every hash begins. */
export const FNV_BASIS = 0x811c9dc5;

const FNV_PRIME = 0x01000193;

/**
 * FNV-1a in 32 bits, over the UTF-16 units of a text, or over integers, each of which counts as one
 * unit.
 * @param basis the hash of what came before, or another beginning for a second hash
 */
export function fnv1a(units: string | ArrayLike<number>, basis: number = FNV_BASIS): number {
  let hash = basis;
  if (typeof units === 'string') {
    for (let i = 0; i < units.length; i++) {
      hash = Math.imul(hash ^ units.charCodeAt(i), FNV_PRIME);
    }
  } else {
    // The loop goes by index, because an iterator of numbers takes ten times as long.
    for (let i = 0; i < units.length; i++) {
      hash = Math.imul(hash ^ units[i]!, FNV_PRIME);
    }
  }
  return hash >>> 0;
}
