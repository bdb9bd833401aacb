// Trains a small GPT in the page with FSDP. Two ranks share one device, as in the tests of one
// process. The text is a fixed pattern, so that a few steps show the loss falling.
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, clipGradNorm, Gpt2 } from '@shardweave/nn';
import { type Backend, Device, mean } from '@shardweave/tensor-core';
import { openBackend, type PageDevice } from './open-backend.ts';

const NUM_RANKS = 2;
const NUM_STEPS = 5;
const BATCH = 2; // rows of each rank
const SEQ = 32;
const SHAPE = { vocab_size: 256, n_positions: SEQ, n_embd: 32, n_layer: 2, n_head: 2 };

export type TrainResult = {
  /** The mean loss over the ranks, for each step. */
  readonly losses: readonly number[];
  /** The number of all-gathers of rank 0. With none nothing would have been sharded. */
  readonly numAllGathers: number;
};

export async function trainFewSteps(name: PageDevice): Promise<TrainResult> {
  const backend = await openBackend(name);
  try {
    const groups = createMemoryGroup(NUM_RANKS);
    const ranks = await Promise.all(groups.map((group) => trainRank(backend, group)));
    const losses = ranks[0]!.losses.map(
      (_, step) => ranks.reduce((sum, rank) => sum + rank.losses[step]!, 0) / NUM_RANKS,
    );
    return { losses, numAllGathers: ranks[0]!.numAllGathers };
  } finally {
    await backend.dispose();
  }
}

async function trainRank(backend: Backend, processGroup: ProcessGroup): Promise<TrainResult> {
  const device = new Device(backend);
  const gpt = new Gpt2(device, SHAPE);
  for (const name of [...gpt.children().keys()].slice(1, -1)) {
    const block = gpt.children().get(name)!;
    gpt.replaceChild(name, new FullyShardedDataParallel(block, { processGroup }));
  }
  const model = new FullyShardedDataParallel(gpt, { processGroup });
  const optimizer = new AdamW([{ params: model.parameters() }], { lr: 3e-3 });
  const losses: number[] = [];
  for (let step = 0; step < NUM_STEPS; step++) {
    await device.scope(async () => {
      const { ids, targets } = rowsOf(device, processGroup.rank);
      const loss = mean(await model.call(ids, { targets }));
      await loss.backward();
      const { scale } = await clipGradNorm(model, 1);
      await optimizer.step({ gradScale: scale });
      optimizer.zeroGrad();
      losses.push(await loss.item());
    });
  }
  const numAllGathers = processGroup.stats().allGathers;
  await processGroup.close();
  return { losses, numAllGathers };
}

function rowsOf(device: Device, rank: number) {
  const text = Int32Array.from({ length: BATCH * SEQ + 1 }, (_, at) => (at * 7 + rank) % 256);
  return {
    ids: device.tensor(text.slice(0, -1), [BATCH, SEQ]), // [batch, seq]
    targets: device.tensor(text.slice(1), [BATCH, SEQ]), // [batch, seq]
  };
}
