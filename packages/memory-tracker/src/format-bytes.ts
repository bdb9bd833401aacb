// Formats numbers of bytes for people.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** The unit in which `bytes` is a number of at most four digits. */
export function byteUnit(bytes: number): { readonly name: string; readonly bytes: number } {
  let power = 0;
  while (power < UNITS.length - 1 && Math.abs(bytes) >= 1024 ** (power + 1)) {
    power += 1;
  }
  return { name: UNITS[power]!, bytes: 1024 ** power };
}

/** The bytes in the unit that fits, such as '440 B' or '12.3 MiB'. */
export function formatBytes(bytes: number): string {
  const unit = byteUnit(bytes);
  return `${(bytes / unit.bytes).toFixed(unit.bytes === 1 ? 0 : 1)} ${unit.name}`;
}
