// The queue of backward and of free buffers gives what a sort would.

import fc from 'fast-check';
import { expect, it } from 'vitest';
import { PriorityQueue } from '../src/priority-queue.js';

const KEYS = fc.array(fc.integer({ min: -50, max: 50 }));

it('gives what was pushed by falling keys, whatever came and went before', () => {
  fc.assert(
    fc.property(KEYS, fc.nat(20), KEYS, (first, numTaken, more) => {
      const queue = new PriorityQueue<{ readonly key: number }>(({ key }) => key);
      first.map((key) => queue.push({ key }));
      const taken = Array.from({ length: numTaken }, () => queue.pop()?.key);
      const sorted = first.toSorted((a, b) => b - a);
      expect(taken).toEqual(Array.from({ length: numTaken }, (_, i) => sorted[i]));
      more.map((key) => queue.push({ key }));
      const left = [...sorted.slice(numTaken), ...more].toSorted((a, b) => b - a);
      expect(queue.items.map(({ key }) => key).toSorted((a, b) => b - a)).toEqual(left);
      expect(left.map(() => queue.pop()?.key)).toEqual(left);
      expect(queue.pop()).toBeUndefined();
    }),
  );
});
