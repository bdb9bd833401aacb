// Writes spans of time as people say them.

const UNITS = [
  ['d', 86_400],
  ['h', 3600],
  ['min', 60],
  ['s', 1],
] as const;

/** A span as text, such as `42 s`, `3 min 20 s` or `2 h 5 min`. */
export function spanText(ms: number): string {
  let left = Math.max(0, Math.round(ms / 1000));
  const parts: string[] = [];
  for (const [unit, seconds] of UNITS) {
    const count = Math.floor(left / seconds);
    left -= count * seconds;
    if (count > 0 || (unit === 's' && parts.length === 0)) {
      parts.push(`${count} ${unit}`);
    }
  }
  return parts.slice(0, 2).join(' ');
}

export function agoText(ms: number): string {
  return ms < 1500 ? 'just now' : `${spanText(ms)} ago`;
}
