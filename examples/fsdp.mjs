// A small GPT sharded over two ranks of this process: each holds half of all parameters.
import { createMemoryGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, Gpt2 } from '@shardweave/nn';
import { Device, mean } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

const backend = await createCpuBackend({ threads: 1 });
const config = { vocab_size: 128, n_positions: 32, n_embd: 32, n_layer: 2, n_head: 2 };
const texts = ['Call me Ishmael. Some years ago-', 'never mind how long precisely-ha'];

await Promise.all(
  createMemoryGroup(2).map(async (processGroup, rank) => {
    const device = new Device(backend);
    const model = new FullyShardedDataParallel(new Gpt2(device, config), { processGroup });
    const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
    const tokens = Int32Array.from(new TextEncoder().encode(texts[rank]));
    const ids = device.tensor(tokens.slice(0, -1), [1, 31]);
    const targets = device.tensor(tokens.slice(1), [1, 31]);
    for (let step = 1; step <= 20; step++) {
      await device.scope(async () => {
        const loss = mean(await model.call(ids, { targets }));
        await loss.backward();
        await optimizer.step();
        optimizer.zeroGrad();
        console.log(`rank ${rank} step ${step} loss ${(await loss.item()).toFixed(3)}`);
      });
    }
    await processGroup.close();
  }),
);
await backend.dispose();
