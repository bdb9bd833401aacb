// The largest set of members of whom each two are linked. A half that can't reach the other half
// makes two such sets, and only one of them may go on.

/** Whether `a` is a better set than `b`; both are in ascending order. */
type IsBetter = (a: readonly number[], b: readonly number[]) => boolean;

/**
 * The most sets that are tried. Cuts between few hosts take some tens; where every second path of
 * hundreds is cut at random, the member with the most cuts is left out without a further look.
 */
const MAX_TRIES = 1000;

/**
 * The largest set of `ids` without a pair that is cut; of sets of the same size the one with the
 * lowest ids. A set without one of `needed` counts less than any that has one.
 * @param ids in ascending order
 */
export function largestLinked(
  ids: readonly number[],
  isCut: (a: number, b: number) => boolean,
  needed: (id: number) => boolean,
): readonly number[] {
  let tries = 0;
  const isBetter: IsBetter = (a, b) => {
    const [hasA, hasB] = [a.some(needed), b.some(needed)];
    if (hasA !== hasB) {
      return hasA;
    }
    return a.length === b.length ? isLower(a, b) : a.length > b.length;
  };
  const search = (set: readonly number[]): readonly number[] => {
    const cutsOf = (id: number) => set.filter((other) => isCut(id, other));
    let worst = -1;
    let cuts: readonly number[] = [];
    for (const id of set) {
      const itsCuts = cutsOf(id);
      if (itsCuts.length > 0 && itsCuts.length >= cuts.length) {
        worst = id;
        cuts = itsCuts;
      }
    }
    if (cuts.length === 0) {
      return set;
    }
    const without = search(set.filter((id) => id !== worst));
    if (++tries > MAX_TRIES) {
      return without;
    }
    const withIt = search(set.filter((id) => !cuts.includes(id)));
    return isBetter(withIt, without) ? withIt : without;
  };
  return search(ids);
}

function isLower(a: readonly number[], b: readonly number[]): boolean {
  const at = a.findIndex((id, i) => id !== b[i]);
  return at >= 0 && a[at]! < b[at]!;
}
