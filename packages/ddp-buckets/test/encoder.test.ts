// An encoder on data-parallel ranks trains as one process does, with packed texts, dropout, and a
// pooler that only some steps use; and so does a classifier on it.

import { Sgd } from '@shardweave/nn';
import { it } from 'vitest';
import {
  stepClassifier,
  stepEncoder,
  tinyClassifier,
  tinyEncoder,
} from '../../../tooling/test-kit/encoder.ts';
import { expectTrainedAsOneProcess, training } from '../../../tooling/test-kit/index.ts';
import { SMALL_BUCKETS, wrap } from './support/ranks.js';

const program = training({
  build: (device, wrapIn) => wrapIn(tinyEncoder(device)),
  run: stepEncoder,
  steps: 2,
  optimizer: (model) => new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 }),
});

it.each([2, 3])(
  'an encoder has the losses and weights of one process over %i ranks',
  async (ranks) => {
    await expectTrainedAsOneProcess(program, {
      ranks,
      wrap: (rank) => (module) =>
        wrap(module, rank, { ...SMALL_BUCKETS, findUnusedParameters: true }),
    });
  },
);

const classifier = training({
  build: (device, wrapIn) => wrapIn(tinyClassifier(tinyEncoder(device))),
  run: stepClassifier,
  steps: 2,
  optimizer: (model) => new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 }),
});

it('a classifier has the losses and weights of one process over 2 ranks', async () => {
  await expectTrainedAsOneProcess(classifier, {
    ranks: 2,
    wrap: (rank) => (module) => wrap(module, rank, SMALL_BUCKETS),
  });
});
