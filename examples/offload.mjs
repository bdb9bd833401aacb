// A GPT that never lies whole on its device: layers rest in host memory and come to it one slice
// after the other, within a budget of bytes.
import { AdamW, Gpt2 } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { Device, mean } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

const backend = await createCpuBackend({ threads: 1 });
const device = new Device(backend);
const config = { vocab_size: 128, n_positions: 32, n_embd: 64, n_layer: 4, n_head: 2 };
const gpt = new Gpt2(device, config, { deferInit: true }); // shapes, no memory yet
const model = new OffloadModel(gpt, { deviceBudgetBytes: 7e5, checkpointActivation: true });
const optimizer = new AdamW(model.parameters(), { lr: 0.005 });

const tokens = Int32Array.from(new TextEncoder().encode('Call me Ishmael. Some years ago-'));
const ids = device.tensor(tokens.slice(0, -1), [1, 31]);
const targets = device.tensor(tokens.slice(1), [1, 31]);
for (let step = 1; step <= 20; step++) {
  await device.scope(async () => {
    const loss = mean(await model.call(ids, { targets }));
    await loss.backward();
    console.log(`step ${step} loss ${(await loss.item()).toFixed(3)}`);
  });
  await optimizer.step();
  optimizer.zeroGrad();
}
const size = model.parameters().reduce((sum, parameter) => sum + 4 * parameter.size, 0);
console.log(`parameters ${size} bytes, on the device at most ${device.memory().peak.total}`);
model.dispose();
await backend.dispose();
