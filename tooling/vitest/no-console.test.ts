// Tests the guard against tests that print. In this file the guard itself is under test.
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
