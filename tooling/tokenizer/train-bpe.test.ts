import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { trainTokenizer } from './train-bpe.mjs';

it('the committed tokenizer is what its script trains', () => {
  const committed = readFileSync(new URL('tokenizer.json', import.meta.url), 'utf8');
  expect(trainTokenizer()).toBe(committed);
});
