// The losses that an example prints, a line a step: `rank 0 step 1 loss 4.857`.

/** Takes the lines of one rank where it is given, else those of a program that names no ranks. */
export function printedLosses(lines: readonly string[], rank?: number): readonly number[] {
  const start = rank === undefined ? 'step' : `rank ${rank} step`;
  const line = new RegExp(`^${start} \\d+ loss (\\d+\\.\\d+)$`);
  return lines.flatMap((text) => line.exec(text)?.slice(1).map(Number) ?? []);
}
