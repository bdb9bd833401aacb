// Which parameter group of a save each group of an optimizer is.

import { StateDictError } from '../errors.js';

/** A saved group: options, with the names of its parameters. */
export interface SavedGroup {
  readonly params: readonly string[];
}

/**
 * Finds the saved group of each group by the names of their parameters, because a script may list
 * its groups in another order than the one that saved. Names that only one side has do not count: a
 * parameter may be frozen now, or new. A group without parameters takes a saved group that is left.
 * @param own the names of the parameters of each group
 * @param options.strict whether a group that only one side has is an error
 * @returns undefined for a group that was not saved
 * @throws {StateDictError} naming a parameter that was saved in another group than those beside it,
 * or saved together with one that is in another group here
 */
export function matchGroups<Saved extends SavedGroup>(
  saved: readonly Saved[],
  own: readonly (readonly string[])[],
  { operation, strict: isStrict }: { readonly operation: string; readonly strict: boolean },
): (Saved | undefined)[] {
  const places = new Map(
    saved.flatMap(({ params }, i) => params.map((name) => [name, i] as const)),
  );
  /** The first parameter that was found for each saved group, and its group here. */
  const taken = new Map<number, { readonly name: string; readonly group: number }>();
  const found = own.map((names, group) => {
    const known = names.filter((name) => places.has(name));
    const [first] = known;
    if (first === undefined) {
      return undefined;
    }
    const place = places.get(first)!;
    const stray = known.find((name) => places.get(name) !== place);
    if (stray !== undefined) {
      throw misplaced(
        `${operation}: expected the parameters of group ${group} in one saved group, got '${first}' in saved group ${place} and '${stray}' in saved group ${places.get(stray)}.`,
        stray,
      );
    }
    const other = taken.get(place);
    if (other !== undefined) {
      throw misplaced(
        `${operation}: expected the parameters of saved group ${place} in one group, got '${other.name}' in group ${other.group} and '${first}' in group ${group}.`,
        first,
      );
    }
    taken.set(place, { name: first, group });
    return place;
  });
  const left = [...saved.keys()].filter((place) => !taken.has(place));
  const matched = own.map((names, i) => (names.length === 0 ? left.shift() : found[i]));
  const lacking = matched.indexOf(undefined);
  const rest = left.find((place) => saved[place]!.params.length > 0);
  if (isStrict && (lacking >= 0 || rest !== undefined)) {
    const got =
      lacking < 0
        ? `saved group ${rest} of ${saved.length} besides, of '${saved[rest!]!.params[0]}'`
        : `none for group ${lacking}${own[lacking]!.length > 0 ? `, of '${own[lacking]![0]}'` : ''}`;
    throw misplaced(
      `${operation}: expected ${own.length} saved parameter groups, got ${got}.`,
      lacking < 0 ? saved[rest!]!.params[0] : own[lacking]![0],
    );
  }
  return matched.map((place) => (place === undefined ? undefined : saved[place]));
}

function misplaced(text: string, name: string | undefined): StateDictError {
  return new StateDictError(`${text} Make the optimizer with the groups that were saved.`, {
    mismatched: name === undefined ? [] : [name],
  });
}
