// What a model says, as a terminal may show it.

/** An untrained model says anything, also what would command the terminal. */
export function printable(text: string): string {
  return text.replaceAll(/[^\P{Cc}\n]/gu, '\u00b7');
}
