// These flats rest over several processes, and one has more elements than the host adds without a
// pause.

import { AdamW } from '@shardweave/nn';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { bytesOf, makeFlat } from './support/flats.js';
import { MapStore } from './support/map-store.js';
import { values } from './support/support.js';

/** Returns a flat in `store`, with new values or with those that the store has. */
async function restingFlat(store: MapStore, size: number, resume: boolean) {
  const device = new Device(createReferenceBackend());
  const { flat, home } = await makeFlat(device, store, { size, resume });
  return { device, flat, home: home! };
}

it('an optimizer that resumes counts on from the step at rest, bit for bit', async () => {
  const results: Uint8Array[] = [];
  for (const isResuming of [false, true]) {
    const store = new MapStore();
    let { flat, home, device } = await restingFlat(store, 8, false);
    let optimizer = new AdamW([flat], { lr: 0.1 });
    for (let step = 0; step < 4; step++) {
      if (isResuming && step === 2) {
        home.close();
        device.dispose();
        ({ flat, home, device } = await restingFlat(store, 8, true));
        optimizer = new AdamW([flat], { lr: 0.1 });
      }
      await home.gradient.addBytes(bytesOf(values(8, step + 2)), 'f32', 1);
      await optimizer.step();
      optimizer.zeroGrad();
    }
    expect((await optimizer.readFlatState(flat))!.runs[0]!.step).toBe(4);
    results.push(await home.parameter.read(0, 32));
    device.dispose();
  }
  expect(results[1]).toEqual(results[0]);
});

it('state without the steps of its parts, as other versions wrote it, is refused and stays', async () => {
  const store = new MapStore();
  const { flat, home } = await restingFlat(store, 8, false);
  const optimizer = new AdamW([flat], { lr: 0.1 });
  await home.gradient.addBytes(bytesOf(values(8)), 'f32', 1);
  await optimizer.step();
  home.close();
  const key = store.keys().find((one) => one.endsWith('/state'))!;
  const head = new Uint8Array(store.byteLength(key)!);
  await store.read(key, head);
  const { runs: _, ...rest } = JSON.parse(new TextDecoder().decode(head)) as { runs: unknown };
  const former = new TextEncoder().encode(JSON.stringify({ step: 1, ...rest }));
  await store.write(key, former);

  await expect(restingFlat(store, 8, true)).rejects.toThrow(
    /expected the steps of each part .* got tensors, step, optimizer/,
  );
  const left = new Uint8Array(store.byteLength(key)!);
  await store.read(key, left);
  expect(left).toEqual(former);
});

it('gradients of more elements than one slice add up element by element', async () => {
  const size = 64 * 1024 + 100;
  const { device, home } = await restingFlat(new MapStore(), size, false);
  const [first, second] = [values(size, 2), values(size, 3)];
  await home.gradient.addBytes(bytesOf(first), 'f32', 1);
  await home.gradient.addBytes(bytesOf(second), 'f32', 0.5);
  const sums = first.map((value, i) => value + Math.fround(second[i]! * 0.5));
  expect(Buffer.compare((await home.gradient.read())!, bytesOf(sums))).toBe(0);
  device.dispose();
});
