// The first 20 losses and gradient norms of a tiny GPT-2 are compared with those of PyTorch
// (tooling/reference).

import { readFileSync } from 'node:fs';
import {
  AdamW,
  checkpoint,
  clipGradNorm,
  Gpt2,
  Gpt2Block,
  type Gpt2Config,
  loadStateDict,
  packParameters,
  parseModelConfig,
  readSafetensors,
} from '@shardweave/nn';
import { type Backend, crossEntropy, Device, mul, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const DATA = new URL('../../../tooling/reference/data/tiny/', import.meta.url);
// Rounding alone moves these losses by 1e-7, far less than this bound.
const RELATIVE = 2e-4;
const { cases } = JSON.parse(readFileSync(new URL('expected.json', DATA), 'utf8')) as {
  cases: { name: string; flags: string[]; losses: number[]; gradNorms: number[]; lrs: number[] }[];
};

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

/**
 * Trains as the case's flags say, with the case's learning rates. Returns the loss and the norm of
 * each step.
 */
async function train(name: string, options: { isWrapped: boolean }) {
  const { flags, lrs } = cases.find((item) => item.name === name)!;
  const flag = (key: string) => Number(flags[flags.indexOf(`--${key}`) + 1]);
  const device = new Device(backend);
  const model = new Gpt2(
    device,
    parseModelConfig(readFileSync(new URL('config.json', DATA), 'utf8')) as Gpt2Config,
  );
  const file = readFileSync(new URL('model.safetensors', DATA));
  await loadStateDict(model, readSafetensors(file).tensors);
  if (options.isWrapped) {
    for (const [child, layer] of model.children()) {
      if (layer instanceof Gpt2Block) {
        model.replaceChild(child, checkpoint(layer));
      }
    }
    packParameters(model);
  }
  const text = readFileSync(new URL('text.txt', DATA));
  const optimizer = new AdamW(
    [
      {
        params: model.parameters().filter(({ rank }) => rank >= 2),
        weightDecay: flag('weight-decay'),
      },
      { params: model.parameters().filter(({ rank }) => rank < 2), weightDecay: 0 },
    ],
    { betas: [flag('beta1'), flag('beta2')], eps: flag('eps') },
  );
  const [batch, seq, parts] = [flag('batch'), flag('seq'), flag('grad-accum')];
  const result: { losses: number[]; gradNorms: number[] } = { losses: [], gradNorms: [] };
  for (const [step, lr] of lrs.entries()) {
    let total = 0;
    for (let part = 0; part < parts; part++) {
      const rows = Array.from({ length: batch / parts }, (_, i) => {
        const row = step * batch + part * (batch / parts) + i;
        return (row * seq) % (text.length - seq - 1);
      });
      const tokens = (shift: number): Tensor =>
        device.tensor(
          Int32Array.from(rows.flatMap((at) => [...text.subarray(at + shift, at + shift + seq)])),
          [rows.length, seq],
        );
      total += await device.scope(async () => {
        const loss = crossEntropy(await model.call(tokens(0)), tokens(1));
        await mul(loss, 1 / parts).backward();
        return loss.item();
      });
    }
    await device.scope(async () => {
      const { norm, scale } = await clipGradNorm(model.parameters(), flag('clip'));
      for (const group of optimizer.groups) {
        group.lr = lr;
      }
      await optimizer.step({ gradScale: scale });
      result.gradNorms.push(await norm.item());
    });
    optimizer.zeroGrad();
    result.losses.push(total / parts);
  }
  return result;
}

function worst(actual: readonly number[], expected: readonly number[]): number {
  expect(actual).toHaveLength(expected.length);
  return Math.max(...actual.map((value, i) => Math.abs(value / expected[i]! - 1)));
}

describe('a tiny GPT-2 against PyTorch in fp32', () => {
  it.each([
    ['plain-fp32', false],
    ['cosine-fp32', false],
    ['accum-fp32', true],
  ])('%s (packed and checkpointed: %s)', async (name, isWrapped) => {
    const { losses, gradNorms } = cases.find((item) => item.name === name)!;
    const actual = await train(name, { isWrapped });
    expect(worst(actual.losses, losses)).toBeLessThan(RELATIVE);
    expect(worst(actual.gradNorms, gradNorms)).toBeLessThan(RELATIVE);
  });
});
