// The looks of runs, and colors for what is drawn on a canvas, which no style sheet reaches.
// page.css has the colors by theme. Those of runs stay apart for people who see no red or no green,
// too, and nobody needs them: each run has dashes of its own.

/** The dashes of each run in pixels, drawn and left out by turns; none: a line without gaps. */
export const RUN_DASHES: readonly (readonly number[])[] = [
  [],
  [8, 4],
  [2, 3],
  [12, 4, 2, 4],
  [5, 2],
  [18, 5],
  [8, 3, 2, 3, 2, 3],
  [3, 7],
  [14, 3, 5, 3],
  [6, 6],
  [22, 4, 2, 4, 2, 4],
  [10, 10],
];
export const NUM_RUN_COLORS = RUN_DASHES.length;

export interface Palette {
  color(name: string): string;
  run(index: number): string;
  /** A color between those of the first and the last layer; `share` is from 0 to 1. */
  depth(share: number): string;
}

export function readPalette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return {
    color,
    run: (index) => color(`run-${index % NUM_RUN_COLORS}`),
    depth: (share) => mixed(color('depth-first'), color('depth-last'), share),
  };
}

export function runDash(index: number): readonly number[] {
  return RUN_DASHES[index % NUM_RUN_COLORS]!;
}

/** Mixes two colors of the form #rrggbb. */
export function mixed(first: string, last: string, share: number): string {
  const parts = [1, 3, 5].map((at) => {
    const [low, high] = [first, last].map((color) => Number.parseInt(color.slice(at, at + 2), 16));
    return Math.round(low! + (high! - low!) * share)
      .toString(16)
      .padStart(2, '0');
  });
  return `#${parts.join('')}`;
}
