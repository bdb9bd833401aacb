// Trains a small model in the page with FSDP. Two ranks share one device, as in the tests of one
// process. Its rows are a fixed pattern, so that a few steps show the loss falling.
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, clipGradNorm, Gpt2, type Module } from '@shardweave/nn';
import { type Backend, Device, mean, type Tensor } from '@shardweave/tensor-core';
import { inputs, layer, lossOf, Stack } from '../../test-kit/models.ts';
import { openBackend, type PageDevice } from './open-backend.ts';

const NUM_RANKS = 2;
const NUM_STEPS = 5;
const BATCH = 2; // rows of each rank
const SEQ = 32;
const SHAPE = { vocab_size: 256, n_positions: SEQ, n_embd: 32, n_layer: 2, n_head: 2 };

/**
 * What is trained: a GPT, of whose kernels a page's software driver compiles each for a tenth of a
 * second, or two layers, which have a third of them.
 */
export type PageModel = 'gpt2' | 'layers';

export type TrainResult = {
  /** The mean loss over the ranks, for each step. */
  readonly losses: readonly number[];
  /** The number of all-gathers of rank 0. With none nothing would have been sharded. */
  readonly numAllGathers: number;
};

export async function trainFewSteps(
  name: PageDevice,
  kind: PageModel = 'gpt2',
): Promise<TrainResult> {
  const backend = await openBackend(name);
  try {
    const groups = createMemoryGroup(NUM_RANKS);
    const ranks = await Promise.all(groups.map((group) => trainRank(backend, group, kind)));
    const losses = ranks[0]!.losses.map(
      (_, step) => ranks.reduce((sum, rank) => sum + rank.losses[step]!, 0) / NUM_RANKS,
    );
    return { losses, numAllGathers: ranks[0]!.numAllGathers };
  } finally {
    await backend.dispose();
  }
}

async function trainRank(
  backend: Backend,
  processGroup: ProcessGroup,
  kind: PageModel,
): Promise<TrainResult> {
  const device = new Device(backend);
  const { module, units, lossAfter } = MODELS[kind](device, processGroup.rank);
  for (const name of units) {
    const unit = module.children().get(name)!;
    module.replaceChild(name, new FullyShardedDataParallel(unit, { processGroup }));
  }
  const model = new FullyShardedDataParallel(module, { processGroup });
  const optimizer = new AdamW([{ params: model.parameters() }], { lr: 3e-3 });
  const losses: number[] = [];
  for (let step = 0; step < NUM_STEPS; step++) {
    await device.scope(async () => {
      const loss = await lossAfter(model);
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

interface Program {
  readonly module: Module;
  /** The names of the children that are sharded each by itself. */
  readonly units: readonly string[];
  /** Runs forward of the module, wrapped by now, on the rank's rows. */
  lossAfter(model: Module): Promise<Tensor>;
}

const MODELS: Readonly<Record<PageModel, (device: Device, rank: number) => Program>> = {
  gpt2: (device, rank) => {
    const module = new Gpt2(device, SHAPE);
    return {
      module,
      units: [...module.children().keys()].slice(1, -1),
      lossAfter: async (model) => {
        const { ids, targets } = rowsOf(device, rank);
        return mean(await model.call(ids, { targets }));
      },
    };
  },
  layers: (device, rank) => {
    const module = new Stack(device, [layer(device), layer(device)]);
    return {
      module,
      units: module.order,
      lossAfter: async (model) =>
        lossOf(await model.call(inputs(device, { first: rank, count: 1 }))),
    };
  },
};

function rowsOf(device: Device, rank: number) {
  const text = Int32Array.from({ length: BATCH * SEQ + 1 }, (_, at) => (at * 7 + rank) % 256);
  return {
    ids: device.tensor(text.slice(0, -1), [BATCH, SEQ]), // [batch, seq]
    targets: device.tensor(text.slice(1), [BATCH, SEQ]), // [batch, seq]
  };
}
