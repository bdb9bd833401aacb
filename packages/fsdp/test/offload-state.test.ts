// State dicts of shards that rest on the host have the same values as those of resident shards.
// They are saved and loaded either way, and leave nothing on the device.

import type { FsdpOptions } from '@shardweave/fsdp';
import {
  gatherFullOptimStateDict,
  loadLocalStateDict,
  localStateDict,
} from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  Gpt2,
  Linear,
  loadCheckpoint,
  loadStateDict,
  type StateDict,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';

import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  onRanks,
  type Rank,
  Stack,
  stepped,
  TINY,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { place } from './support/saved-models.js';
import { shardedGpt2, wrapIn } from './support/sharding.js';

const HOST = { moveParamsToCpu: true } as const;
const DEVICE = {} as const;

/** Returns entries as texts, since typed arrays compare slowly. */
function text(entries: StateDict): string[] {
  return [...entries].map(([name, { dtype, shape, data }]) => {
    return `${name} ${dtype} [${shape.join()}] ${Buffer.from(data).toString('base64')}`;
  });
}

async function trained(rank: Rank, options: Partial<FsdpOptions>, steps: number) {
  const device = new Device(rank.device.backend, { seed: 7 });
  const wrap = wrapIn(rank, options);
  const linear = (inFeatures: number, outFeatures: number) =>
    new Linear(device, { inFeatures, outFeatures });
  const model = wrap(new Stack(device, [linear(DIM, 45), wrap(linear(45, 41))]));
  const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
  await stepped(optimizer, steps, (step) =>
    trainOnce(model, { first: 6 * rank.rank, count: 6 }, step),
  );
  return { device, model, optimizer };
}

describe.each([
  [DEVICE, HOST],
  [HOST, DEVICE],
  [HOST, HOST],
] as const)('from %j to %j', (from, to) => {
  it('whole, local and sharded saves and optimizer state come over, bit for bit', async () => {
    const store = place();
    await onRanks(2, async (rank) => {
      const source = await trained(rank, from, 2);
      const whole = await stateDict(source.model);
      const local = await localStateDict(source.model);
      const state = await gatherFullOptimStateDict(source.model, source.optimizer);
      await saveCheckpoint(source.model, store, { optimizer: source.optimizer });
      const onEach = [
        (target: typeof source) => loadStateDict(target.model, whole),
        (target: typeof source) => loadLocalStateDict(target.model, local),
        (target: typeof source) =>
          loadCheckpoint(target.model, store, { optimizer: target.optimizer }),
      ];
      for (const load of onEach) {
        const target = await trained(rank, to, 1);
        const { live } = target.device.memory();
        await load(target);
        expect(text(await stateDict(target.model))).toEqual(text(whole));
        expect(text(await localStateDict(target.model))).toEqual(text(local));
        expect(target.device.memory().live).toEqual(live);
        if (to === HOST) {
          expect(live.total).toBe(0);
        }
      }
      const target = await trained(rank, to, 1);
      await loadCheckpoint(target.model, store, { optimizer: target.optimizer });
      expect(await gatherFullOptimStateDict(target.model, target.optimizer)).toEqual(state);
    });
  });
});

it('deferred values go to the host by parts, one of them on the device at once', async () => {
  const bare = await stateDict(new Gpt2(new Device(createReferenceBackend()), TINY, { seed: 3 }));
  await onRanks(2, async (rank) => {
    const { model } = shardedGpt2(rank, { fsdp: HOST, deferInit: true });
    await model.initialize();
    const sizes = model
      .instances()
      .flatMap(({ units }) => units.map((unit) => unit.flat.storage.byteLength));
    const { peak } = rank.device.memory(); // Only rank 0 draws.
    expect(peak.total).toBe(rank.rank === 0 ? Math.max(...sizes) : 0);
    expect(peak.staging).toBe(peak.total);
    expect(await stateDict(model)).toEqual(bare);
  });
});
