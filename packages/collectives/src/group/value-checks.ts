// Tells what is wrong with a caller's values, for the checks of calls and of groups.

import { WIRE_FORMATS } from '@shardweave/dtypes';

/** The value as an error names it: a number or string by its value, anything else by its kind. */
export function shown(value: unknown): string {
  if (typeof value === 'string') {
    return `'${value}'`;
  }
  return typeof value === 'number' || typeof value === 'boolean' ? String(value) : kindOf(value);
}

/**
 * The kind of a value, such as Float32Array, Array, string or undefined. It is read from the tag,
 * so that values of any realm are recognized.
 */
export function kindOf(value: unknown): string {
  return typeof value === 'object' && value !== null
    ? Object.prototype.toString.call(value).slice('[object '.length, -1)
    : value === null
      ? 'null'
      : typeof value;
}

/**
 * What is wrong with a limit in milliseconds; undefined where nothing is. Infinity means no limit.
 */
export function complaintOfTimeLimit(name: string, ms: unknown): string | undefined {
  return typeof ms === 'number' && ms > 0
    ? undefined
    : `expected ${name} to be positive milliseconds (Infinity: no limit), got ${shown(ms)}.`;
}

/** What is wrong with an option for how f32 travels; undefined where nothing is. */
export function complaintOfWire(wire: unknown): string | undefined {
  const formats: readonly unknown[] = ['exact', ...WIRE_FORMATS];
  return formats.includes(wire)
    ? undefined
    : `expected wire to be ${formats.join(', ')}, got ${shown(wire)}.`;
}
