// Checks the fields of peers' JSON messages. Peers know the secret, but may be broken: the type and
// range of every field are checked before it is used. Each function throws an Error that tells what
// is wrong.

/** A longer text is cut, not refused, because texts are for people. */
const MAX_TEXT = 4096;

export type Fields = Readonly<Record<string, unknown>>;

export function parseJson(text: string): unknown {
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

export function textOf(value: unknown, name: string, maxLength?: number): string {
  if (typeof value !== 'string' || (maxLength !== undefined && value.length > maxLength)) {
    throw new Error(`${name}: expected a text of at most ${maxLength ?? MAX_TEXT} characters`);
  }
  return maxLength === undefined ? printable(value.slice(0, MAX_TEXT)) : value;
}

/**
 * Replaces control characters, because what people read may end on a terminal, which obeys them.
 */
function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (found) => (found === '\n' ? found : '?'));
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
  return new Error(`unknown message type ${JSON.stringify(type)?.slice(0, 40)}`);
}
