// Offload on WebGPU: what it computes is what the model computes there without it.

import type { Backend } from '@shardweave/tensor-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/vitest/webgpu-device.ts';
import { begin, losses } from './training.js';

const STEPS = 3;
const why = noWebGpu === undefined ? '' : ` (${noWebGpu})`;

describe.skipIf(noWebGpu !== undefined)(`on WebGPU${why}`, () => {
  let backend: Backend;
  let plain: number[] = [];
  beforeAll(async () => {
    backend = await openWebGpu();
    plain = await losses(begin({ backend }), STEPS);
  });
  afterAll(() => backend.dispose());

  it.each([true, false])('losses are equal bit for bit, checkpointing %s', async (isOn) => {
    const run = begin({ backend, offload: { checkpointActivation: isOn } });
    expect(await losses(run, STEPS)).toEqual(plain);
    run.optimizer.dispose();
    run.model.dispose();
    expect(run.device.memory().live.total).toBe(0);
  });

  it('trains in f16, in micro-batches', async () => {
    const run = begin({ backend, offload: { computeDType: 'f16', numMicrobatches: 2 } });
    const found = await losses(run, STEPS);
    found.forEach((loss, i) => {
      expect(Math.abs(loss - plain[i]!), `step ${i}`).toBeLessThan(2e-3);
    });
  });
});
