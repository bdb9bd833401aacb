// This trains from a disk and kills itself: `node killed-process.mjs DIRECTORY WRITES` dies after
// that many writes to files. disk.test.ts bundles and starts it.

import { nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { begin, trainStep } from './training.js';

const [directory, numWrites] = process.argv.slice(2);
let left = Number(numWrites);

const files = interceptFiles(({ operation }) => {
  if (operation === 'write' && left-- === 0) {
    process.kill(process.pid, 'SIGKILL');
  }
}, nodeFiles);

const store = await openDiskStore({ directory: directory!, files });
const run = begin({ offload: { store } });
for (let step = 0; step < 100; step++) {
  await trainStep(run, step);
  process.stdout.write(`${step}\n`);
}
