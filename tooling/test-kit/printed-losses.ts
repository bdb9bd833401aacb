// Reads the losses that an example prints, one line for each step: `rank 0 step 1 loss 4.857`.

/** Reads the lines of one rank, or without `rank` the lines of a program that names no ranks. */
export function printedLosses(lines: readonly string[], rank?: number): readonly number[] {
  const start = rank === undefined ? 'step' : `rank ${rank} step`;
  const line = new RegExp(`^${start} \\d+ loss (\\d+\\.\\d+)$`);
  return lines.flatMap((text) => line.exec(text)?.slice(1).map(Number) ?? []);
}
