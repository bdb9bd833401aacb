// The length of the sample text at the end of a run depends on the model, on the run's length, and
// on what its ranks gather.

import { createMemoryGroup } from '@shardweave/collectives';
import { expect, it } from 'vitest';
import { PRESETS } from '../src/model/presets.js';
import { gatheredBytes, sampleLength } from '../src/rank/sample-text.js';

it('is shorter of a larger model, and never nothing', () => {
  const lengths = Object.values(PRESETS).map(({ config }) => sampleLength(config));
  // The models are nano to gpt2-xl, with 0.1 to 1,558 million parameters. In all, 16e9 parameters
  // are read.
  expect(lengths).toEqual([240, 240, 240, 128, 45, 20, 16]);
});

it('is shorter of a run that has trained on few tokens, and never nothing', () => {
  const { config } = PRESETS.nano;
  const lengths = [192, 1600, 10_000].map((trainedTokens) =>
    sampleLength(config, { trainedTokens }),
  );
  expect(lengths).toEqual([16, 100, 240]);
});

it('is left out where its tokens would gather a large model again and again', async () => {
  const [group, other] = createMemoryGroup(2);
  const lengths = Object.values(PRESETS).map(({ config: modelConfig }) =>
    sampleLength(modelConfig, {
      gatheredBytes: gatheredBytes({ modelConfig, precision: 'bf16' }, { group: group! }),
    }),
  );
  // A rank receives one byte of each parameter for each token: half of the parameters, in 2 bytes.
  expect(lengths).toEqual([240, 240, 110, 0, 0, 0, 0]);
  await Promise.all([group!.close(), other!.close()]);
});
