// Makes a model's text safe for a terminal.

/**
 * Replaces control characters: an untrained model says anything, including what would command the
 * terminal.
 */
export function printable(text: string): string {
  return text.replaceAll(/[^\P{Cc}\n]/gu, '\u00b7');
}
