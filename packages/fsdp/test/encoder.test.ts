// A sharded encoder trains as one process does, with packed texts, dropout, and a pooler that only
// some steps use; and so does a classifier on it.

import type { FsdpOptions } from '@shardweave/fsdp';
import { type Module, Sgd } from '@shardweave/nn';
import type { Encoder } from '@shardweave/nn/embedding';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  stepClassifier,
  stepEncoder,
  tinyClassifier,
  tinyEncoder,
} from '../../../tooling/test-kit/encoder.ts';
import {
  expectTrainedAsOneProcess,
  meanLosses,
  trainAlone,
  trainAs,
  training,
} from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

type Wrap = (module: Module) => Module;

function withWrappedLayers(device: Device, wrap: Wrap): Encoder {
  const encoder = tinyEncoder(device);
  for (const [name, layer] of [...encoder.children()].slice(1)) {
    encoder.replaceChild(name, wrap(layer));
  }
  return encoder;
}

const program = training<Partial<FsdpOptions>>({
  build: (device, wrap) => wrap(withWrappedLayers(device, wrap)),
  run: stepEncoder,
  steps: 2,
  optimizer: (model) => new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 }),
});

describe('a sharded encoder', () => {
  it.each<[ranks: number, options: Partial<FsdpOptions>]>([
    [2, {}],
    [3, { reshardAfterForward: false }],
  ])('has the losses and weights of one process over %i ranks, with %j', async (ranks, fsdp) => {
    await expectTrainedAsOneProcess(program, { ranks, wrap: (rank) => wrapIn(rank, fsdp) });
  });

  it.each(['bf16', 'f16'] as const)('comes near them in %s', async (computeDType) => {
    const fsdp = { mixedPrecision: true, computeDType };
    const { losses } = await trainAlone(program);
    const halves = await trainAs(program, { ranks: 2, wrap: (rank) => wrapIn(rank, fsdp) });
    meanLosses(halves).forEach((loss, step) => {
      expect(Math.abs(loss / losses[step]! - 1)).toBeLessThan(5e-3); // as GPT-2's in mixed-precision.test.ts
      expect(loss).not.toBe(losses[step]);
    });
  });
});

it('a sharded classifier has the losses and weights of one process over 2 ranks', async () => {
  const classifier = training<Partial<FsdpOptions>>({
    build: (device, wrap) => wrap(tinyClassifier(withWrappedLayers(device, wrap))),
    run: stepClassifier,
    steps: 2,
    optimizer: (model) => new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 }),
  });
  await expectTrainedAsOneProcess(classifier, { ranks: 2, wrap: (rank) => wrapIn(rank, {}) });
});
