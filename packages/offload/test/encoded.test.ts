// Frozen parameters may rest in an encoded form: the store holds the encoded bytes, and they are
// decoded around their slice's use.

import { piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  lazyStateDict,
  loadCheckpoint,
  loadStateDict,
  Sequential,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { OffloadConfigError, OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import {
  EncodedLinear,
  int8Weight,
  scaledF16Weight,
  WIDTH,
} from '../../../tooling/test-kit/encoded-linear.ts';

const [int8, scaledF16] = [await int8Weight(0), await scaledF16Weight(1)];

const newDevice = () => new Device(createReferenceBackend(), { seed: 11 });

function layers(device: Device, isEncoded: boolean) {
  return [int8, scaledF16, int8].map((weight) => new EncodedLinear(device, weight, { isEncoded }));
}

function rows(device: Device): Tensor {
  const values = Float32Array.from({ length: 4 * WIDTH }, (_, i) => Math.sin(i + 1));
  return device.tensor(values, [4, WIDTH], { requiresGrad: true });
}

function offloaded(device: Device, options: OffloadOptions = {}): OffloadModel {
  return new OffloadModel(new Sequential(device, layers(device, true)), options);
}

async function losses(model: Sequential | OffloadModel): Promise<number[]> {
  const { device } = model;
  const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  const optimizer = new AdamW(trained, { lr: 0.05 });
  const found: number[] = [];
  for (let step = 0; step < 3; step++) {
    found.push(
      await device.scope(async () => {
        const loss = mean(square(await model.call(rows(device))));
        await loss.backward();
        return loss.item();
      }),
    );
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return found;
}

it.each<OffloadOptions>([
  {},
  { numSlices: 1 },
  { checkpointActivation: true },
  { loadAheadBytes: 0 },
  { deviceBudgetBytes: 24_000 },
])(
  'a model trains beside encoded parameters as beside their values, bit for bit, with %j',
  async (options) => {
    const device = newDevice();
    const model = offloaded(device, options);
    const bare = newDevice();
    expect(await losses(model)).toEqual(await losses(new Sequential(bare, layers(bare, false))));
    expect(device.memory().live).toMatchObject({ parameter: 0, staging: 0 });
    expect(model.hostMemory().stagingBytes).toBe(0);
  },
);

it('several in one flat are decoded each from its own bytes', async () => {
  const others = [await int8Weight(2), await scaledF16Weight(3), await int8Weight(4)];
  const run = (isEncoded: boolean) => {
    const device = newDevice();
    const inner = others.map((weight) => new EncodedLinear(device, weight, { isEncoded }));
    const model = new Sequential(device, [new Sequential(device, inner)]);
    return losses(isEncoded ? new OffloadModel(model) : model);
  };
  expect(await run(true)).toEqual(await run(false));
});

it('encoded parameters are words in the store, without a gradient or state', async () => {
  const store = createHostStore();
  const model = offloaded(newDevice(), { store });
  await losses(model);
  const sizes = store.keys().map((key) => [key, store.byteLength(key)!] as const);
  const encoded = sizes.filter(([key]) => key.includes('encoded'));
  expect(encoded.map(([key]) => key).sort()).toEqual([
    'offload.0.encoded/parameter',
    'offload.1.encoded/parameter',
    'offload.2.encoded/parameter',
  ]);
  expect(encoded.map(([, byteLength]) => byteLength)).toEqual([512, 512, 512]);
});

it('encoded words go out and come back: whole, lazily, and in saves', async () => {
  const model = offloaded(newDevice());
  const state = await stateDict(model);
  expect(state.get('0.base')).toMatchObject({ dtype: 'u32', shape: [14] });
  expect(state.get('0.base')!.data.subarray(0, int8.bytes.byteLength)).toEqual(int8.bytes);
  const store = piecesIn(createHostStore());
  await saveCheckpoint(model, store);
  const cleared = new Map(
    [...state].map(([name, entry]) => [
      name,
      { ...entry, data: new Uint8Array(entry.data.length) },
    ]),
  );
  for (const load of [
    (other: OffloadModel) => loadStateDict(other, state),
    async (other: OffloadModel) => loadStateDict(other, await lazyStateDict(model)),
    (other: OffloadModel) => loadCheckpoint(other, store),
  ]) {
    const other = offloaded(newDevice());
    await loadStateDict(other, cleared);
    expect(await stateDict(other)).toEqual(cleared);
    await load(other);
    expect(await stateDict(other)).toEqual(state);
    expect(await losses(other)).toEqual(await losses(offloaded(newDevice())));
  }
});

it('refuses to train encoded parameters', () => {
  const device = newDevice();
  const trained = layers(device, true);
  trained[1]!.base.requiresGrad = true;
  const wrapping = () => new OffloadModel(new Sequential(device, trained));
  expect(wrapping).toThrow(/encoded parameters to be frozen, got requiresGrad of '1.base'/);
  expect(wrapping).toThrow(OffloadConfigError);
});
