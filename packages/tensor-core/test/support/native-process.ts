// Opens two devices with native products, multiplies on both, and ends without disposing of them.
// It prints how many threads the library started, and whether it left a variable.

import { readdirSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Device, matmul } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';

process.execPath = process.argv[2] ?? process.execPath;
const environment = () => JSON.stringify(Object.entries(process.env).sort());
const countThreads = () => readdirSync('/proc/self/task').length;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

const devices = [
  new Device(await createCpuBackend({ threads: 2, products: 'native' })),
  new Device(await createCpuBackend({ threads: 1, products: 'native' })),
];
const [threads, variables] = [countThreads(), environment()];
for (const device of devices) {
  const ones = device.full([256, 256], 1);
  // The device's thread is behind: what it loads itself, it loads after this collection of garbage.
  const large = Array.from({ length: 12 }, () => device.full([2 ** 22], 1));
  const product = matmul(ones, ones);
  collect();
  await setImmediate();
  console.log(`results ${[...new Set(await product.toArray())]}`);
  for (const tensor of large) {
    tensor.dispose();
  }
}
console.log(`threads ${countThreads() - threads}`);
console.log(`variables ${variables === environment() ? 'as before' : environment()}`);
