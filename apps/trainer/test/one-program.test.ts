// One program under every wrapper: only the line that wraps is another. It trains with a loss scale
// and clipped gradients, is saved, loaded in a new process, goes on, and is exported.

import { type PieceStore, piecesIn } from '@shardweave/checkpoint';
import type { ProcessGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  AdamW,
  clipGradNorm,
  GradScaler,
  gradNorm,
  Linear,
  lazyStateDict,
  loadCheckpoint,
  type Module,
  ParameterInit,
  packParameters,
  Sequential,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { type Device, mean, square } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { onRanks } from '../../../tooling/vitest/training-ranks.js';

type Wrap = (model: Sequential, processGroup: ProcessGroup) => Module;

/** Steps from what `store` has to `last` and saves. It gives norms, and rank 0's values. */
async function program(
  { device, group }: { readonly device: Device; readonly group: ProcessGroup },
  wrap: Wrap,
  { store, last }: { readonly store: PieceStore; readonly last: number },
) {
  const model = wrap(net(device, 1), group);
  const optimizer = new AdamW(model.parameters(), { lr: 0.05 });
  const scaler = new GradScaler(model, { initScale: 8 });
  const isSaved = (await store.files()).length > 0;
  const { step: first = 0 } = isSaved ? await loadCheckpoint(model, store, { optimizer }) : {};
  const norms: number[] = [];
  for (let step = first as number; step < last; step++) {
    await device.scope(async () => {
      const x = device.tensor(rows(step), [4, 3]);
      await scaler.scale(mean(square(await model.call(x)))).backward();
      await scaler.unscale(optimizer);
      const { norm, scale } = await clipGradNorm(model, 0.1);
      norms.push(await norm.item());
      await scaler.step(optimizer, { gradScale: scale });
      scaler.update();
      optimizer.zeroGrad();
    });
  }
  await saveCheckpoint(model, store, { optimizer, extra: { step: last } });
  const exported: [string, Uint8Array][] = [];
  for (const [name, entry] of await lazyStateDict(model, { stateDictOnRank0Only: true })) {
    exported.push([name, await entry.read()]);
  }
  return { norms, exported };
}

function net(device: Device, seed: number): Sequential {
  const init = new ParameterInit(device, { seed });
  return new Sequential(device, [
    new Linear(device, { inFeatures: 3, outFeatures: 7, init }),
    new Linear(device, { inFeatures: 7, outFeatures: 3, init }),
  ]);
}

function rows(step: number): Float32Array {
  return Float32Array.from({ length: 12 }, (_, i) => Math.sin(i + 3 * step));
}

function packed(model: Sequential): Module {
  packParameters(model);
  return model;
}

/** Wraps the second block, and not the root, whose own block is alike on all ranks. */
function inPart(model: Sequential, processGroup: ProcessGroup): Module {
  const block = model.children().get('1')!;
  model.replaceChild('1', new FullyShardedDataParallel(block, { processGroup }));
  return model;
}

const WRAPS: readonly (readonly [name: string, numRanks: number, wrap: Wrap])[] = [
  ['plain', 1, (model) => model],
  ['packed', 1, packed],
  ['ddp at 2', 2, (model, processGroup) => new DistributedDataParallel(model, { processGroup })],
  ['fsdp at 1', 1, (model, processGroup) => new FullyShardedDataParallel(model, { processGroup })],
  ['fsdp at 2', 2, (model, processGroup) => new FullyShardedDataParallel(model, { processGroup })],
  ['fsdp in part at 2', 2, inPart],
  ['offload', 1, (model) => new OffloadModel(model)],
];

describe.each(WRAPS)('%s', (_, numRanks, wrap) => {
  it('trains, is saved, goes on in another process and is exported as the plain model, bit for bit', async () => {
    const run = async (ranks: number, as: Wrap) => {
      const store = piecesIn(createHostStore());
      const backend = createReferenceBackend();
      const norms: number[] = [];
      let exported: readonly unknown[] = [];
      for (const last of [2, 4]) {
        const found = await onRanks(ranks, (rank) => program(rank, as, { store, last }), {
          backend,
        });
        norms.push(...found[0]!.norms);
        expect(found.map((each) => each.norms)).toEqual(found.map(() => found[0]!.norms));
        expect(found.slice(1).flatMap((each) => each.exported)).toEqual([]);
        exported = found[0]!.exported;
      }
      return { norms, exported };
    };
    expect(await run(numRanks, wrap)).toEqual(await run(1, (model) => model));
  });
});

it('a generator and a critic of two wrappers have one norm, which clips both', async () => {
  const perRank = await onRanks(2, async ({ device, group }) => {
    const norms: number[] = [];
    for (const wrap of [
      (model: Sequential): Module => model,
      (model: Sequential): Module => new FullyShardedDataParallel(model, { processGroup: group }),
    ]) {
      const models = [wrap(net(device, 1)), wrap(net(device, 2))];
      const optimizer = new Sgd(
        models.flatMap((model) => model.parameters()),
        { lr: 1 },
      );
      await device.scope(async () => {
        for (const model of models) {
          await mean(square(await model.call(device.tensor(rows(0), [4, 3])))).backward();
        }
        norms.push(await gradNorm(models));
        const { norm, scale } = await clipGradNorm(models, 0.01);
        expect(await norm.item()).toBe(Math.fround(norms[0]!));
        await optimizer.step({ gradScale: scale });
      });
      norms.push((await stateDict(models)).size);
    }
    return norms;
  });
  for (const [plain, size, sharded, shardedSize] of perRank) {
    expect([sharded, shardedSize]).toEqual([plain, size]);
    expect(size).toBe(8);
  }
});
