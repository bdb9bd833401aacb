// The length of the sample text at the end of a run depends only on the model.

import { expect, it } from 'vitest';
import { PRESETS } from '../src/model/presets.js';
import { sampleLength } from '../src/rank/sample-text.js';

it('is shorter of a larger model, and never nothing', () => {
  const lengths = Object.values(PRESETS).map(({ config }) => sampleLength(config));
  // The models are nano to gpt2-xl, with 0.1 to 1,558 million parameters. In all, 16e9 parameters
  // are read.
  expect(lengths).toEqual([240, 240, 240, 128, 45, 20, 16]);
});
