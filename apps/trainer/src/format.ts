// Writes numbers as people read them, in the fixed columns of the step line.

export { formatBytes } from '@shardweave/dtypes/messages';

/** A count as text, such as `950`, `11.2k`, `842k` or `124M`. */
export function formatCount(count: number): string {
  for (const [suffix, size] of [
    ['G', 1e9],
    ['M', 1e6],
    ['k', 1e3],
  ] as const) {
    if (count >= size) {
      const value = count / size;
      return `${value >= 100 ? Math.round(value) : value.toFixed(1)}${suffix}`;
    }
  }
  return String(Math.round(count));
}

/** A number of things, such as `1 step` or `8 steps`. */
export function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}

/** Milliseconds as text, such as `3.2 ms`, `182 ms` or `12.1 s`. */
export function formatMs(ms: number): string {
  if (ms >= 10_000) {
    return `${(ms / 1000).toFixed(1)} s`;
  }
  return `${ms >= 10 ? Math.round(ms) : ms.toFixed(1)} ms`;
}
