// Checks the fields of peers' JSON messages. Peers know the secret, but may be broken: the type and
// range of every field are checked before it is used. Each function throws an Error that tells what
// is wrong.

import { MAX_TOLD_LENGTH } from '../../../failure.js';
import { printable } from '../../../printable.js';

/**
 * The longest JSON text that ranks take from each other; nothing of a job of a thousand ranks is
 * longer, but for the table of their addresses. What is nested in it is as bounded.
 */
export const MAX_JSON_LENGTH = 64 * 1024;

export type Fields = Readonly<Record<string, unknown>>;

export function parseJson(text: string, maxLength = MAX_JSON_LENGTH): unknown {
  if (text.length > maxLength) {
    throw new Error(`a text of ${text.length} characters, over ${maxLength}`);
  }
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('text that is no JSON');
  }
}

export function fieldsOf(value: unknown): Fields {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new Error('expected an object');
  }
  return value as Fields;
}

/** Reads a text. Without `maxLength` it is one for people, which is cut where it is too long. */
export function textOf(value: unknown, name: string, maxLength?: number): string {
  if (typeof value !== 'string' || (maxLength !== undefined && value.length > maxLength)) {
    const limit = maxLength === undefined ? '' : ` of at most ${maxLength} characters`;
    throw new Error(`${name}: expected a text${limit}`);
  }
  return maxLength === undefined ? printable(value, MAX_TOLD_LENGTH) : value;
}

export function countOf(value: unknown, name: string, max: number): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > max) {
    throw new Error(`${name}: expected an integer from 0 to ${max}`);
  }
  return value;
}

export function rankOf(value: unknown, worldSize: number): number {
  return countOf(value, 'rank', worldSize - 1);
}

export function listOf<T>(
  value: unknown,
  name: string,
  maxLength: number,
  read: (item: unknown) => T,
): T[] {
  if (!Array.isArray(value) || value.length > maxLength) {
    throw new Error(`${name}: expected a list of at most ${maxLength}`);
  }
  return value.map(read);
}

export function unknownType({ type }: Fields): Error {
  return new Error(`unknown message type ${printable(JSON.stringify(type) ?? 'none', 40)}`);
}
