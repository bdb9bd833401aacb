// FNV-1a is compared with the values that its authors publish.

import { FNV_BASIS, fnv1a } from '@shardweave/dtypes';
import { expect, it } from 'vitest';

it.each([
  ['', 0x811c9dc5],
  ['a', 0xe40c292c],
  ['foobar', 0xbf9cf968],
])('the hash of %j is the published one', (text, hash) => {
  expect(fnv1a(text)).toBe(hash);
  expect(fnv1a(new TextEncoder().encode(text))).toBe(hash);
});

it('goes on where an earlier one ended', () => {
  expect(fnv1a('bar', fnv1a('foo'))).toBe(fnv1a('foobar'));
  expect(fnv1a('foo', FNV_BASIS ^ 1)).not.toBe(fnv1a('foo'));
});
