// These rows of an experiment together have every pair of values of every two axes, with far fewer
// rows than the whole product. The choice is greedy and seeded.

export type Axes = { readonly [axis: string]: readonly unknown[] };
export type RowOf<A extends Axes> = { readonly [K in keyof A]: A[K][number] };

/** How many random rows compete to be the next. */
const CANDIDATES = 40;

interface Choice {
  readonly axis: string;
  readonly value: unknown;
}

/** Pairs of choices, each by a text that identifies it. */
type Pairs = Map<string, readonly [Choice, Choice]>;

function addPair(pairs: Pairs, a: Choice, b: Choice): void {
  pairs.set(`${a.axis} ${String(a.value)} & ${b.axis} ${String(b.value)}`, [a, b]);
}

/** Returns the pairs that a row has. */
export function pairsOf<A extends Axes>(axes: A, row: RowOf<A>): Pairs {
  const pairs: Pairs = new Map();
  const choices = Object.keys(axes).map((axis) => ({ axis, value: row[axis] }));
  choices.forEach((a, i) => {
    for (const b of choices.slice(i + 1)) {
      addPair(pairs, a, b);
    }
  });
  return pairs;
}

/** Returns all pairs of choices of two axes. */
export function allPairs(axes: Axes): Pairs {
  const pairs: Pairs = new Map();
  const names = Object.keys(axes);
  names.forEach((axis, i) => {
    for (const other of names.slice(i + 1)) {
      for (const value of axes[axis]!) {
        for (const otherValue of axes[other]!) {
          addPair(pairs, { axis, value }, { axis: other, value: otherValue });
        }
      }
    }
  });
  return pairs;
}

export function pairwiseRows<A extends Axes>(axes: A, seed: number): RowOf<A>[] {
  let state = seed >>> 0;
  const random = (below: number) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  const uncovered = allPairs(axes);
  const rows: RowOf<A>[] = [];
  for (const [, wanted] of uncovered) {
    // Every candidate contains a missing pair, so that each row covers at least one.
    let best: RowOf<A> | undefined;
    let most = -1;
    for (let k = 0; k < CANDIDATES; k++) {
      const row = Object.fromEntries(
        Object.entries(axes).map(([axis, values]) => {
          const given = wanted.find((choice) => choice.axis === axis);
          return [axis, given === undefined ? values[random(values.length)] : given.value];
        }),
      ) as RowOf<A>;
      const covers = [...pairsOf(axes, row).keys()].filter((pair) => uncovered.has(pair)).length;
      if (covers > most) {
        [best, most] = [row, covers];
      }
    }
    rows.push(best!);
    for (const pair of pairsOf(axes, best!).keys()) {
      uncovered.delete(pair);
    }
  }
  return rows;
}
