// A GPT sharded over two machines, a process on each. The secret is the same on both, made once by
// `openssl rand -hex 32`; the address is that of the first machine.
//   SHARDWEAVE_SECRET=... node two-machines.mjs 0 192.168.0.10    on the first
//   SHARDWEAVE_SECRET=... node two-machines.mjs 1 192.168.0.10    on the second
import { connectWs } from '@shardweave/collectives/ws';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, Gpt2 } from '@shardweave/nn';
import { Device, mean } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

const rank = Number(process.argv[2]);
const address = process.argv[3];
const secret = process.env.SHARDWEAVE_SECRET;
const processGroup = await connectWs({ rank, worldSize: 2, address, port: 29500, secret });

const backend = await createCpuBackend({ threads: 1 });
const device = new Device(backend);
const config = { vocab_size: 128, n_positions: 32, n_embd: 32, n_layer: 2, n_head: 2 };
const model = new FullyShardedDataParallel(new Gpt2(device, config), { processGroup });
const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
const text = ['Call me Ishmael. Some years ago-', 'never mind how long precisely-ha'][rank];
const tokens = Int32Array.from(new TextEncoder().encode(text));
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
await backend.dispose();
