// A short stand-in for a text or a list of numbers: the hash of Fowler, Noll and Vo, variant 1a. It
// finds accidents; whoever chooses the input can make two that are alike.

/** Where the hash of nothing begins. */
export const FNV_BASIS = 0x811c9dc5;

const FNV_PRIME = 0x01000193;

/**
 * FNV-1a in 32 bits, over a text's UTF-16 units or over integers, of which each counts as one unit.
 * @param basis the hash of what came before, or another beginning for a second hash
 */
export function fnv1a(units: string | Iterable<number>, basis: number = FNV_BASIS): number {
  let hash = basis;
  if (typeof units === 'string') {
    for (let i = 0; i < units.length; i++) {
      hash = Math.imul(hash ^ units.charCodeAt(i), FNV_PRIME);
    }
  } else {
    for (const unit of units) {
      hash = Math.imul(hash ^ unit, FNV_PRIME);
    }
  }
  return hash >>> 0;
}
