// Says in words what is wrong with a caller's values; the checks of calls and of groups share it.

import { WIRE_FORMATS } from '@shardweave/dtypes';

/**
 * Shows a value as an error names it: numbers and strings by what they are, others by their kind.
 */
export function shown(value: unknown): string {
  if (typeof value === 'string') {
    return `'${value}'`;
  }
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : kindOf(value);
}

/**
 * For example Float32Array, Array, string, undefined. It goes by the tag, so values of any realm
 * are known.
 */
export function kindOf(value: unknown): string {
  return typeof value === 'object' && value !== null
    ? Object.prototype.toString.call(value).slice('[object '.length, -1)
    : value === null
      ? 'null'
      : typeof value;
}

/**
 * What is wrong with a limit in milliseconds, or undefined. Infinity means that there is no limit.
 */
export function complaintOfTimeLimit(name: string, ms: unknown): string | undefined {
  return typeof ms === 'number' && ms > 0
    ? undefined
    : `expected ${name} to be positive milliseconds (Infinity: no limit), got ${shown(ms)}.`;
}

/** What is wrong with how f32 shall travel, or undefined. */
export function complaintOfWire(wire: unknown): string | undefined {
  const formats: readonly unknown[] = ['exact', ...WIRE_FORMATS];
  return formats.includes(wire)
    ? undefined
    : `expected wire to be ${formats.join(', ')}, got ${shown(wire)}.`;
}
