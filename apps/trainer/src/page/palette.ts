// Colors for what is drawn on a canvas, which no style sheet reaches. page.css has them, by theme.

export const NUM_RUN_COLORS = 6;

export interface Palette {
  color(name: string): string;
  run(index: number): string;
}

export function readPalette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  return { color, run: (index) => color(`run-${index % NUM_RUN_COLORS}`) };
}
