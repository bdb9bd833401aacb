// Numbers of bytes for people.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** The unit in which `bytes` is a number of at most four digits. */
export function byteUnit(bytes: number): { readonly name: string; readonly bytes: number } {
  let unit = 1;
  let at = 0;
  while (at < UNITS.length - 1 && Math.abs(bytes) >= 1024 * unit) {
    unit *= 1024;
    at += 1;
  }
  return { name: UNITS[at]!, bytes: unit };
}

/** Bytes in the unit that fits, such as `412 MiB`, `38.4 MiB` or `900 B`. */
export function formatBytes(bytes: number): string {
  const { name, bytes: unit } = byteUnit(bytes);
  const value = bytes / unit;
  return `${unit === 1 || Math.abs(value) >= 100 ? Math.round(value) : value.toFixed(1)} ${name}`;
}
