/** A message that another sentence quotes: without the full stop at its end. */
export function withoutStop(message: string): string {
  return message.endsWith('.') ? message.slice(0, -1) : message;
}
