// All ranks of a job sum a vector, whatever launcher started them: see the folders beside this
// file.

import { initProcessGroup, readLauncher } from '@shardweave/collectives/launch';

const group = await initProcessGroup();
const { rank, worldSize } = group;

const own = new Float32Array(1024).fill(rank + 1);
const sum = new Float32Array(own.length);
const bytes = (array) => new Uint8Array(array.buffer);
await group.allReduce(bytes(own), bytes(sum), { dtype: 'f32', op: 'sum' });

const { launcher, attempt } = readLauncher(process.env);
console.log(`rank ${rank} of ${worldSize} by ${launcher}, attempt ${attempt}: sum ${sum.at(-1)}`);
await group.close();
