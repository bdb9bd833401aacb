// Finds the known word that a mistyped one was meant to be.

/**
 * The number of letters that may be wrong in a long word; in a short one at most half of its
 * letters may be.
 */
const MOST_EDITS = 3;

/**
 * The known word with the fewest letters wrong, missing, added or swapped; undefined where every
 * one is too different.
 */
export function nearest(word: string, known: Iterable<string>): string | undefined {
  let best: string | undefined;
  let fewest = Math.min(MOST_EDITS, Math.floor(word.length / 2)) + 1;
  for (const candidate of known) {
    const edits = editDistance(word, candidate);
    if (edits < fewest) {
      best = candidate;
      fewest = edits;
    }
  }
  return best;
}

/**
 * The fewest edits from `a` to `b`, by the table of all their beginnings; a swap of neighbors is
 * one edit.
 */
function editDistance(a: string, b: string): number {
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1] === b[j - 1];
      row[j] = Math.min(
        rows[i - 1]![j]! + 1,
        row[j - 1]! + 1,
        rows[i - 1]![j - 1]! + (isSame ? 0 : 1),
      );
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        row[j] = Math.min(row[j]!, rows[i - 2]![j - 2]! + 1);
      }
    }
    rows.push(row);
  }
  return rows[a.length]![b.length]!;
}
