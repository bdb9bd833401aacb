// This trains from a disk and kills itself: `node offload-process.mjs DIRECTORY WRITES` dies after
// that many writes to files. offload-disk.test.ts bundles and starts it.

import { nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { interceptFiles } from '@shardweave/shard-store/testing-node';
import { onRanks } from '../../../../tooling/test-kit/index.ts';
import { storedTraining } from './offload-training.js';

const [directory, numWrites] = process.argv.slice(2);
let left = Number(numWrites);

const files = interceptFiles(({ operation }) => {
  if (operation === 'write' && left-- === 0) {
    process.kill(process.pid, 'SIGKILL');
  }
}, nodeFiles);

await onRanks(1, async (rank) => {
  const store = await openDiskStore({ directory: directory!, files });
  const training = storedTraining(rank, store);
  for (let step = 0; step < 100; step++) {
    await training.step(step);
    process.stdout.write(`${step}\n`);
  }
});
