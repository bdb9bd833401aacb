// Each family of decoders is compared with PyTorch (tooling/reference/decoders.py): logits, every
// gradient, and the losses of twenty steps. The cases have grouped heads, odd numbers of heads, and
// tied and untied heads.

import { readFileSync } from 'node:fs';
import {
  Decoder,
  type DecoderConfig,
  loadStateDict,
  parseModelConfig,
  readSafetensors,
} from '@shardweave/nn';
import { type Backend, Device, mean, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';

const DATA = new URL('../../../tooling/reference/data/decoders/', import.meta.url);
const expected = JSON.parse(readFileSync(new URL('expected.json', DATA), 'utf8')) as {
  readonly firstRow: readonly number[];
  readonly rowLosses: Readonly<Record<string, number>>;
};

/** Rounding in f32 alone reaches an eighth of the first bound and a fiftieth of the second. */
const LOGITS = 1e-5;
const GRADIENT = 1e-4;

const backend = await createCpuBackend({ threads: 1 });
const gpu = noWebGpu === undefined ? await openWebGpu() : undefined;
afterAll(async () => {
  await backend.dispose();
  await gpu?.dispose();
});

const floats = (bytes: Uint8Array) => new Float32Array(Uint8Array.from(bytes).buffer);

async function valuesOf(tensor: Tensor): Promise<Float32Array> {
  return (await tensor.toArray()) as Float32Array;
}

const norm = (values: ArrayLike<number>) =>
  Math.sqrt(Array.from(values).reduce((sum, value) => sum + value * value, 0));

describe.each(Object.keys(expected.rowLosses))('%s', (name) => {
  const file = (path: string) => readFileSync(new URL(`${name}/${path}`, DATA));
  const { tensors } = readSafetensors(file('expected.safetensors'));
  const { tensors: weights } = readSafetensors(file('model.safetensors'));
  const config = parseModelConfig(file('config.json').toString()) as DecoderConfig;

  const holdsToPyTorch = async (backend: Backend) => {
    const device = new Device(backend);
    const model = new Decoder(device, config);
    await loadStateDict(model, weights);
    const row = expected.firstRow;
    const ids = device.tensor(Int32Array.from(row.slice(0, -1)), [1, row.length - 1]);
    const targets = device.tensor(Int32Array.from(row.slice(1)), [1, row.length - 1]);
    const logits = await valuesOf(await device.noGrad(() => model.call(ids)));
    const wanted = floats(tensors.get('logits')!.data);
    expect(logits).toHaveLength(wanted.length);
    const off = logits.map((value, i) => Math.abs(value - wanted[i]!));
    expect(off.reduce((most, value) => Math.max(most, value), 0)).toBeLessThan(LOGITS);

    const loss = await device.scope(async () => {
      const each = await model.call(ids, { targets });
      expect(each.shape).toEqual([1, row.length - 1]);
      const loss = mean(each);
      await loss.backward();
      return loss.item();
    });
    expect(Math.abs(loss / expected.rowLosses[name]! - 1)).toBeLessThan(1e-6);
    const named = model.namedParameters();
    expect(named.map(([path]) => `gradient.${path}`).sort()).toEqual(
      [...tensors.keys()].filter((key) => key !== 'logits').sort(),
    );
    for (const [path, parameter] of named) {
      const found = await valuesOf(parameter.grad!);
      const wanted = floats(tensors.get(`gradient.${path}`)!.data);
      const difference = norm(found.map((value, i) => value - wanted[i]!));
      expect(difference / norm(wanted), path).toBeLessThan(GRADIENT);
    }
    model.dispose();
    device.dispose();
  };

  it('has the logits, loss and gradients of PyTorch', () => holdsToPyTorch(backend));

  it.skipIf(gpu === undefined)(
    `computes what PyTorch does on WebGPU, too${gpu === undefined ? ` (${noWebGpu})` : ''}`,
    () => holdsToPyTorch(gpu!),
  );
});
