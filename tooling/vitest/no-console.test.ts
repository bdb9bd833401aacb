// The guard against printing tests, on itself: in this file the guard is the thing under test.
import { expect, it, vi } from 'vitest';

it.fails('fails a test that prints', () => {
  console.warn('on purpose');
});

it('lets a test catch what it expects', () => {
  const warn = vi.spyOn(console, 'warn').mockImplementation(() => {});
  console.warn('caught');
  expect(warn).toHaveBeenCalledWith('caught');
  warn.mockRestore();
});
