// Finds the known name that a misspelt one was meant to be.

import { editDistance } from '@shardweave/dtypes/messages';

/** Returns how many letters may be wrong, missing or too many: two, or a quarter of a long name. */
function mostWrong(name: string): number {
  return Math.max(2, Math.floor(name.length / 4));
}

/**
 * Returns the nearest of `known`, whatever its case and underscores, or undefined where none is
 * near. For 'learningRat' and ['lr', 'learning_rate'] it is 'learning_rate'.
 */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  const plain = plainOf(name);
  let nearest: string | undefined;
  let least = mostWrong(plain) + 1;
  for (const candidate of known) {
    const other = plainOf(candidate);
    const isPart = plain.length > 3 && (other.startsWith(plain) || plain.startsWith(other));
    const distance = isPart ? 1 : editDistance(plain, other);
    if (distance >= least) {
      continue;
    }
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

function plainOf(name: string): string {
  return name.replaceAll('_', '').toLowerCase();
}
