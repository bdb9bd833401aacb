import { createMemoryGroup } from '@shardweave/collectives';
import { clipGradNorm, FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, Gpt2 } from '@shardweave/nn';
import { crossEntropy, Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

const backend = await createCpuBackend({ threads: 1 });

// Two ranks in one process; over processes and hosts, connectWs of @shardweave/collectives/ws.
const ranks = createMemoryGroup(2).map(async (processGroup, rank) => {
  const device = new Device(backend);
  const gpt = new Gpt2(device, { vocab_size: 256, n_positions: 32, n_embd: 64, n_layer: 2, n_head: 2 });
  for (const name of [...gpt.children().keys()].slice(1, -1)) {
    const block = gpt.children().get(name);
    gpt.replaceChild(name, new FullyShardedDataParallel(block, { processGroup }));
  }
  const model = new FullyShardedDataParallel(gpt, { processGroup });
  const optimizer = new AdamW([{ params: model.parameters() }], { lr: 1e-3 });

  for (let step = 0; step < 5; step++) {
    await device.scope(async () => {
      const text = Int32Array.from({ length: 2 * 33 }, (_, i) => (i * 7 + rank) % 256);
      const ids = device.tensor(text.slice(0, 64), [2, 32]);
      const targets = device.tensor(text.slice(1, 65), [2, 32]);
      const loss = crossEntropy(await model.call(ids), targets);
      await loss.backward();
      await clipGradNorm(model, 1);
      await optimizer.step();
      optimizer.zeroGrad();
      if (rank === 0) console.log(`step ${step} loss ${(await loss.item()).toFixed(4)}`);
    });
  }
  await processGroup.close();
});
await Promise.all(ranks);
await backend.dispose();
