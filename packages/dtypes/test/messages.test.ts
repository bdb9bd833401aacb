import { CodedError, editDistance, formatBytes } from '@shardweave/dtypes/messages';
import { describe, expect, it } from 'vitest';

/** The same by its definition: the best of what the ends of both words allow. */
function naiveDistance(a: string, b: string): number {
  if (a === '' || b === '') {
    return a.length + b.length;
  }
  const [endA, endB] = [a.at(-1), b.at(-1)];
  const isSwap = a.length > 1 && b.length > 1 && endA === b.at(-2) && a.at(-2) === endB;
  return Math.min(
    naiveDistance(a.slice(0, -1), b) + 1,
    naiveDistance(a, b.slice(0, -1)) + 1,
    naiveDistance(a.slice(0, -1), b.slice(0, -1)) + (endA === endB ? 0 : 1),
    isSwap ? naiveDistance(a.slice(0, -2), b.slice(0, -2)) + 1 : Infinity,
  );
}

describe('editDistance', () => {
  it('is the number of edits by its definition', () => {
    const letters = ['', 'a', 'b', 'c'];
    const words = new Set(
      letters.flatMap((first) =>
        letters.flatMap((second) => letters.map((third) => first + second + third)),
      ),
    );
    for (const a of words) {
      for (const b of words) {
        expect(editDistance(a, b), `${a} to ${b}`).toBe(naiveDistance(a, b));
      }
    }
  });
});

describe('formatBytes', () => {
  it.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1024, '1.0 KiB'],
    [99.9 * 1024, '99.9 KiB'],
    [412 * 2 ** 20, '412 MiB'],
    [3.5 * 2 ** 40, '3.5 TiB'],
    [-2048, '-2.0 KiB'],
  ])('gives %d as %s', (bytes, text) => {
    expect(formatBytes(bytes)).toBe(text);
  });
});

describe('CodedError', () => {
  it('has the name of its class and the cause that it was given', () => {
    class ExampleError extends CodedError {
      readonly code = 'EXAMPLE';
    }
    const cause = new Error('first');
    expect(new ExampleError('then', { cause })).toMatchObject({
      name: 'ExampleError',
      code: 'EXAMPLE',
      message: 'then',
      cause,
    });
    expect(Object.hasOwn(new ExampleError('alone'), 'cause')).toBe(false);
  });
});
