// The kernels of a GPT's step for each way of training are counted in forward, backward and the
// optimizer's step, so that additional ones are noticed. A comment beside each number says which
// kernels that way adds to those of the bare module.

import { createMemoryGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, Gpt2, type Module, packParameters, type TokenArgs } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { Device, mean, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';

const NUM_LAYERS = 2;
const CONFIG = {
  vocab_size: 37,
  n_positions: 8,
  n_embd: 12,
  n_layer: NUM_LAYERS,
  n_head: 2,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
};

type Way = 'bare' | 'packed' | 'fsdp' | 'ddp' | 'packed, ddp' | 'offload';

function wrapped(way: Way, gpt: Gpt2, { isMixed = false } = {}): Module<TokenArgs, Tensor> {
  const processGroup = createMemoryGroup(1)[0]!;
  if (way.startsWith('packed')) {
    packParameters(gpt, { computeDType: isMixed ? 'bf16' : 'f32' });
  }
  if (way === 'fsdp') {
    const options = { processGroup, mixedPrecision: isMixed };
    for (const name of [...gpt.children().keys()].slice(1, -1)) {
      const block = gpt.children().get(name)!;
      gpt.replaceChild(name, new FullyShardedDataParallel(block, options));
    }
    return new FullyShardedDataParallel(gpt, options);
  }
  if (way.endsWith('ddp')) {
    return new DistributedDataParallel(gpt, { processGroup });
  }
  return way === 'offload' ? new OffloadModel(gpt, { numSlices: 2 }) : gpt;
}

/**
 * Counts the kernels of forward and backward and of the optimizer's step, after buckets are learned
 * and states exist.
 */
async function kernels(
  way: Way,
  { numBackwards = 1, isMixed = false } = {},
): Promise<[forward: number, backward: number, update: number]> {
  const backend = createReferenceBackend();
  const device = new Device(backend, { seed: 1 });
  const model = wrapped(way, new Gpt2(device, CONFIG), { isMixed });
  const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
  let marks: number[] = [];
  const mark = () => marks.push(backend.dispatches);
  const ids = Int32Array.from({ length: 16 }, (_, i) => i % 37);
  for (let step = 0; step < 3; step++) {
    marks = [];
    await device.scope(async () => {
      const [x, y] = [device.tensor(ids, [2, 8]), device.tensor(ids, [2, 8])];
      mark();
      const losses: Tensor[] = [];
      for (let i = 0; i < numBackwards; i++) {
        losses.push(mean(await model.call(x, { targets: y })));
      }
      mark();
      for (const loss of losses) {
        await loss.backward();
      }
      mark();
      await optimizer.step();
      mark();
      optimizer.zeroGrad();
    });
  }
  const [start, forward, backward, update] = marks as [number, number, number, number];
  return [forward - start, backward - forward, update - backward];
}

it('writes each gradient where it is added up, in one kernel by every way of training', async () => {
  const bare = await kernels('bare');
  const [forward, backward] = bare;
  const numParameters = 12 * NUM_LAYERS + 4;
  expect(bare[2]).toBe(numParameters);
  // In forward a layer has two norms, four products and attention; GELU and the second sum are part
  // of products. In backward it has two kernels for each product, and one for each norm and for
  // attention. The other kernels belong to the embeddings, the last norm, the head and the mean.
  expect([forward, backward]).toEqual([7 * NUM_LAYERS + 7, 11 * NUM_LAYERS + 11]);
  // Each flat has one fill for its padding. The first layer's table is the last layer's too; with
  // offload it is a flat of its own. DDP gives each parameter its mean separately, and the
  // optimizer steps each separately.
  const expected: Record<Exclude<Way, 'bare'>, readonly [added: number, update: number]> = {
    packed: [1, 1],
    // The bucket, too, has padding; it goes to the flat as one run, which is copied.
    'packed, ddp': [1, 1],
    fsdp: [NUM_LAYERS + 1, NUM_LAYERS + 1],
    ddp: [1 + numParameters, numParameters],
    offload: [NUM_LAYERS + 3, NUM_LAYERS + 3],
  };
  for (const [way, [added, update]] of Object.entries(expected)) {
    expect([way, ...(await kernels(way as Way))]).toEqual([way, forward, backward + added, update]);
  }
});

it('adds up over backwards with one kernel more a parameter', async () => {
  const numParameters = 12 * NUM_LAYERS + 4;
  const [, once] = await kernels('packed');
  const [, twice] = await kernels('packed', { numBackwards: 2 });
  // The table has two gradients in each backward, whose sum one backward counts already.
  expect(twice).toBe(2 * once - 1 + numParameters);
});

it('computes in bf16 beside f32 masters with one cast of them, and one of their gradients', async () => {
  const mixed = (way: Way, numBackwards = 1) => kernels(way, { isMixed: true, numBackwards });
  const [forward, backward] = await kernels('packed');
  expect(await mixed('packed')).toEqual([forward + 1, backward + 1, 1]);
  expect(await mixed('packed, ddp')).toEqual([forward + 1, backward + 1, 1]);
  // Each unit has one more of each, and blocks are cast again for their backward.
  const numUnits = NUM_LAYERS + 1;
  const added = numUnits + NUM_LAYERS + numUnits - 1;
  expect(await mixed('fsdp')).toEqual([forward + numUnits, backward + added, numUnits]);
  // A second backward is added with one kernel, whatever the number of parameters. The first one
  // has freed the copies, which are made again.
  const [, twice] = await mixed('packed', 2);
  expect(twice).toBe(2 * (backward + 1) + 1);
});
