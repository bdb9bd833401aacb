// Text that another process has chosen, for people. It may end on a terminal, which obeys control
// characters, or in a log, where a line of its own would look like somebody else's.

/** The text on one line, without control characters, and cut to `maxLength` characters. */
export function printable(text: string, maxLength: number): string {
  return text
    .slice(0, maxLength)
    .replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => (character === '\n' ? ' ' : '?'));
}
