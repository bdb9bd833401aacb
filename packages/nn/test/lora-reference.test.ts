// Gradients of adapters are compared with PyTorch's in float64 (tooling/reference/lora.py). Every
// linear layer of a Llama, of a Qwen 2 with biases and of a Qwen 3 has an adapter. The second
// factors are not zero, and the base is frozen.

import { readFileSync } from 'node:fs';
import {
  applyLora,
  Decoder,
  type DecoderConfig,
  loadStateDict,
  parseModelConfig,
  readSafetensors,
} from '@shardweave/nn';
import { mean } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read } from './support/support.js';

const DATA = new URL('../../../tooling/reference/data/', import.meta.url);
const file = (path: string) => readFileSync(new URL(path, DATA));
const expected = JSON.parse(file('lora/expected.json').toString()) as {
  readonly rank: number;
  readonly alpha: number;
  readonly rowLosses: Readonly<Record<string, number>>;
};
const { firstRow } = JSON.parse(file('decoders/expected.json').toString()) as {
  readonly firstRow: readonly number[];
};

/** Rounding in f32 alone reaches a fiftieth of this bound. */
const GRADIENT = 1e-4;

const norm = (values: readonly number[]) =>
  Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));

describe.each(Object.keys(expected.rowLosses))('adapters of a %s', (name) => {
  it('have the loss and the gradients of PyTorch', async () => {
    const device = makeDevice();
    const config = parseModelConfig(file(`decoders/${name}/config.json`).toString());
    const model = new Decoder(device, config as DecoderConfig);
    const { tensors } = readSafetensors(file(`lora/${name}/expected.safetensors`));
    const { tensors: base } = readSafetensors(file(`decoders/${name}/model.safetensors`));
    applyLora(model, { rank: expected.rank, alpha: expected.alpha });
    const isGradient = (key: string) => key.startsWith('gradient.');
    const adapters = [...tensors].filter(([key]) => !isGradient(key));
    await loadStateDict(model, new Map([...base, ...adapters]));
    const tokens = (from: number, to: number) =>
      device.tensor(Int32Array.from(firstRow.slice(from, to)), [1, firstRow.length - 1]);
    const targets = tokens(1, firstRow.length);
    const loss = mean(await model.call(tokens(0, firstRow.length - 1), { targets }));
    await loss.backward();
    expect(Math.abs((await loss.item()) / expected.rowLosses[name]! - 1)).toBeLessThan(1e-6);
    const trained = model.namedParameters().filter(([, { requiresGrad }]) => requiresGrad);
    expect(trained.map(([path]) => `gradient.${path}`).sort()).toEqual(
      [...tensors.keys()].filter(isGradient).sort(),
    );
    for (const [path, parameter] of trained) {
      const { data } = tensors.get(`gradient.${path}`)!;
      const wanted = new Float32Array(Uint8Array.from(data).buffer);
      const found = await read(parameter.grad!);
      const difference = norm(found.map((value, i) => value - wanted[i]!));
      expect(difference / norm([...wanted]), path).toBeLessThan(GRADIENT);
    }
    model.dispose();
    device.dispose();
  });
});
