// This package's checksum equals that of zlib, whichever of the two is in use.

import { crc32 as crc32OfZlib } from 'node:zlib';
import { crc32 } from '@shardweave/checkpoint';
import fc from 'fast-check';
import { expect, it } from 'vitest';

it('equals that of zlib, also of bytes in two parts and at odd places', () => {
  expect(crc32(new TextEncoder().encode('123456789'))).toBe(0xcbf43926);
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 70 }), fc.nat(70), (bytes, cut) => {
      const [first, second] = [bytes.subarray(0, cut), bytes.subarray(cut)];
      expect(crc32(bytes)).toBe(crc32OfZlib(bytes));
      expect(crc32(second, crc32(first))).toBe(crc32OfZlib(bytes));
    }),
    { seed: 5, numRuns: 300 },
  );
});
