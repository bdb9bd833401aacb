// An encoder that rests off its device trains as one on the device does, with packed texts,
// dropout, and a pooler that only some steps use. A classifier keeps its head on the device.

import { AdamW, type Module } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { type Backend, Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  stepClassifier,
  stepEncoder,
  tinyClassifier,
  tinyEncoder,
} from '../../../tooling/test-kit/encoder.ts';
import { stepped } from '../../../tooling/test-kit/index.ts';

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

async function trained(
  wrap?: (encoder: ReturnType<typeof tinyEncoder>) => Module,
  step = stepEncoder,
) {
  const device = new Device(backend, { seed: 7 });
  const encoder = tinyEncoder(device);
  const model = wrap?.(encoder) ?? encoder;
  const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
  const losses = await stepped(optimizer, 4, (index) => step(model, { first: 0, count: 4 }, index));
  optimizer.dispose();
  model.dispose();
  expect(device.memory().live.total).toBe(0);
  return losses;
}

describe('an offloaded encoder', () => {
  it.each([true, false])('has the losses bit for bit, checkpointing %s', async (isOn) => {
    const options = { numSlices: 3, checkpointActivation: isOn };
    expect(await trained((encoder) => new OffloadModel(encoder, options))).toEqual(await trained());
  });

  it('has the losses of a classifier bit for bit', async () => {
    const offloaded = await trained(
      (encoder) => tinyClassifier(new OffloadModel(encoder, { numSlices: 3 })),
      stepClassifier,
    );
    expect(offloaded).toEqual(await trained(tinyClassifier, stepClassifier));
  });

  it('has the losses in micro-batches, to 2e-6', async () => {
    const plain = await trained();
    const parts = await trained((encoder) => new OffloadModel(encoder, { numMicrobatches: 2 }));
    parts.forEach((loss, step) => {
      expect(Math.abs(loss / plain[step]! - 1), `step ${step}`).toBeLessThan(2e-6);
    });
  });
});
