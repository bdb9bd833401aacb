import {
  AdamW,
  checkpoint,
  clipGradNorm,
  Gpt2,
  Gpt2Block,
  GradScaler,
  packParameters,
  Sgd,
} from '@shardweave/nn';
import { crossEntropy, mean } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice } from './support/support.js';

const STEPS = 30;
const CONFIG = {
  vocab_size: 11,
  n_positions: 6,
  n_embd: 8,
  n_layer: 2,
  n_head: 2,
};

describe('a training step', () => {
  it.each([
    ['plain, AdamW', false],
    ['packed and checkpointed, SGD', true],
  ])('allocates nothing new from its second repetition on (%s)', async (_, isWrapped) => {
    const device = makeDevice();
    const model = new Gpt2(device, CONFIG);
    if (isWrapped) {
      for (const [name, layer] of model.children()) {
        if (layer instanceof Gpt2Block) {
          model.replaceChild(name, checkpoint(layer));
        }
      }
    }
    const packed = isWrapped ? packParameters(model) : undefined;
    const params = model.parameters();
    const optimizer = isWrapped ? new Sgd(params, { momentum: 0.9 }) : new AdamW(params);
    const scaler = new GradScaler(model);
    const seen: { live: object; peak: object; buffers: number; reserved: number }[] = [];
    for (let step = 0; step < STEPS; step++) {
      device.ledger.resetPeak();
      device.random.begin({ step, rowOffset: 0 });
      await device.scope(async () => {
        const ids = device.tensor(
          Int32Array.from({ length: 12 }, (_, i) => (i * step) % 11),
          [2, 6],
        );
        const loss = crossEntropy(await model.call(ids), ids);
        await scaler.scale(loss).backward();
        const { norm, scale } = await clipGradNorm(params, 1, { unscale: 1 / scaler.factor });
        await optimizer.step({ gradScale: scale });
        scaler.update(!Number.isFinite(await norm.item()));
      });
      optimizer.zeroGrad();
      const { live, peak, bufferCount, reservedBytes } = device.memory();
      seen.push({ live, peak, buffers: bufferCount, reserved: reservedBytes });
    }
    for (const step of seen.slice(2)) {
      expect(step).toEqual(seen[1]);
    }
    expect(seen[1]!.live).toMatchObject({ activation: 0, gradient: 0 });
    model.dispose();
    packed?.dispose();
    optimizer.dispose();
    expect(device.ledger.live().total).toBe(0);
    device.dispose();
    expect(device.backend.usage()).toEqual({ bytes: 0, buffers: 0 });
  });
});

// In these peaks 1.99 GB are parameters, gradients and the state of AdamW. Nearly all of the rest
// is what backward needs of the blocks.
it.each([
  [8, 1024, 6_714_027_520],
  [1, 8192, 6_780_116_480],
])('GPT-2 124M, AdamW, %i x %i tokens: the peak by dry run', async (rows, seq, expected) => {
  const device = makeDevice();
  const { peakInUseBytes } = await device.dryRun(async () => {
    const model = new Gpt2(device, { n_positions: seq });
    const optimizer = new AdamW(model.parameters());
    for (let step = 0; step < 2; step++) {
      await device.scope(async () => {
        const ids = () => device.tensor(new Int32Array(rows * seq), [rows, seq]);
        await mean(await model.call(ids(), { targets: ids() })).backward();
        await optimizer.step();
      });
      optimizer.zeroGrad();
    }
    optimizer.dispose();
    model.dispose();
  });
  expect(peakInUseBytes).toBe(expected);
});
