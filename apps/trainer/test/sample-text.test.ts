// The sample text at the end of a run: its length depends on the model alone.

import { expect, it } from 'vitest';
import { PRESETS } from '../src/model/presets.js';
import { sampleLength } from '../src/rank/sample-text.js';

it('is shorter of a larger model, and never nothing', () => {
  const lengths = Object.values(PRESETS).map(({ config }) => sampleLength(config));
  // nano to gpt2-xl, of 0.1 to 1,558 million parameters: 16e9 of them are read in all.
  expect(lengths).toEqual([240, 240, 240, 128, 45, 20, 16]);
});
