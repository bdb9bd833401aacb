// The hash of a model is that of its names, shapes and elements, computed here a second time by
// recursion over whole tensors.

import { createHash, hash } from 'node:crypto';
import { openSave, piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  BatchNorm1d,
  hashModel,
  hashSave,
  Linear,
  type Module,
  ParameterInit,
  packParameters,
  Sequential,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import type { Device } from '@shardweave/tensor-core';
import { beforeEach, describe, expect, it } from 'vitest';
import { setGradients } from './support/gradient-leaves.js';
import { makeDevice } from './support/support.js';

/** Three leaves of a hash and a short one, and eight leaves. */
const SHAPES = [
  [37, 90],
  [64, 128],
] as const;

function net(device: Device): Sequential {
  const init = new ParameterInit(device, { seed: 3 });
  const [[a, b], [c, d]] = SHAPES;
  return new Sequential(device, [
    new Linear(device, { inFeatures: a, outFeatures: b, init }),
    new Linear(device, { inFeatures: c, outFeatures: d, init }),
    new BatchNorm1d(device, { numFeatures: 4 }),
  ]);
}

const LEAF_BYTES = 4096; // 1024 elements of f32

function treeOf(leaves: readonly Uint8Array[]): Buffer {
  if (leaves.length === 1) {
    return createHash('sha256').update(Uint8Array.of(0)).update(leaves[0]!).digest();
  }
  let half = 1;
  while (2 * half < leaves.length) {
    half *= 2;
  }
  const [left, right] = [treeOf(leaves.slice(0, half)), treeOf(leaves.slice(half))];
  return createHash('sha256').update(Uint8Array.of(1)).update(left).update(right).digest();
}

function rootOf(bytes: Uint8Array): string {
  const count = Math.ceil(bytes.byteLength / LEAF_BYTES);
  const leaves = Array.from({ length: count }, (_, i) =>
    bytes.subarray(i * LEAF_BYTES, (i + 1) * LEAF_BYTES),
  );
  return treeOf(leaves).toString('hex');
}

/** The hash by whole tensors, as the state dicts of model and optimizer have them. */
async function naiveHash(model: Module, optimizer: AdamW): Promise<string> {
  const state = await stateDict(model);
  const own = await optimizer.stateDict(model.namedParameters());
  const parameters = new Set(model.namedParameters().map(([name]) => name));
  const rows: [string, unknown[]][] = [];
  for (const [name, { dtype, shape, data }] of state) {
    const kind = parameters.has(name) ? 'parameter' : 'buffer';
    const steps = own.state.get(name)?.step ?? 0;
    rows.push([`["${name}"]`, [kind, name, '', dtype, shape, steps, rootOf(data)]]);
    for (const [which, { data: moments }] of own.state.get(name)?.tensors ?? []) {
      const root = rootOf(moments);
      rows.push([`["${name}","${which}"]`, ['state', name, which, 'f32', shape, steps, root]]);
    }
  }
  const tensors = rows.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row);
  const text = JSON.stringify([optimizer.kind, tensors]);
  return createHash('sha256').update(Uint8Array.of(2)).update(text).digest('hex');
}

async function stepped(model: Module, optimizer: AdamW): Promise<void> {
  setGradients(model.parameters(), 1);
  await optimizer.step();
  optimizer.zeroGrad();
}

let model: Sequential;
let optimizer: AdamW;
beforeEach(async () => {
  model = net(makeDevice());
  optimizer = new AdamW(model.parameters(), { lr: 0.01 });
  await stepped(model, optimizer);
});

describe('hashModel', () => {
  it('is the tree over all elements that a recursion computes', async () => {
    const found = await hashModel(model, { optimizer });
    expect(found).toMatch(/^[0-9a-f]{64}$/);
    expect(found).toBe(await naiveHash(model, optimizer));
  });

  it('computes the same by a function that is given', async () => {
    const sha256 = (bytes: Uint8Array) => hash('sha256', bytes, 'buffer');
    const found = await hashModel(model, { optimizer, sha256 });
    expect(found).toBe(await hashModel(model, { optimizer }));
  });

  it('is that of the save of the same values', async () => {
    const store = piecesIn(createHostStore());
    await saveCheckpoint(model, store, { optimizer });
    const found = await hashSave(await openSave(store));
    expect(found).toBe(await hashModel(model, { optimizer }));
  });

  it('gives packed parameters the hash of plain ones', async () => {
    const plain = await hashModel(model);
    using _packed = packParameters(model);
    expect(await hashModel(model)).toBe(plain);
  });

  it('differs where one bit of a weight, a moment or a buffer does', async () => {
    const seen = new Set([await hashModel(model, { optimizer })]);
    const [weight] = model.parameters();
    const [moment] = optimizer.stateOf(weight!)!.tensors.values();
    const [[, buffer]] = model.namedBuffers() as [[string, typeof weight]];
    for (const { storage } of [weight!, moment!, buffer!]) {
      const bytes = await storage.read();
      bytes[bytes.length - 4]! ^= 1;
      storage.write(bytes);
      seen.add(await hashModel(model, { optimizer }));
    }
    expect(seen.size).toBe(4);
  });

  it('differs by the number of steps, and where frozen parameters are left out', async () => {
    const seen = new Set([await hashModel(model, { optimizer })]);
    const state = await optimizer.stateDict(model.namedParameters());
    const later = [...state.state].map(
      ([name, own]) => [name, { ...own, step: own.step + 1 }] as const,
    );
    await optimizer.loadStateDict({ ...state, state: new Map(later) }, model.namedParameters());
    seen.add(await hashModel(model, { optimizer }));
    model.parameters()[0]!.requiresGrad = false;
    seen.add(await hashModel(model));
    seen.add(await hashModel(model, { onlyTrained: true }));
    expect(seen.size).toBe(4);
  });
});
