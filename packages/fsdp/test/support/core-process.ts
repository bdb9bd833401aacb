// This is one of two ranks that run the core as processes over sockets: `node core-process.mjs
// DIRECTORY RANK PORT`. Rank 0 takes port 0 and prints the one it got. core.test.ts bundles and
// starts it.

import { join } from 'node:path';
import { connectWs } from '@shardweave/collectives/ws';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { CORE_CASES } from './core-cases.js';

const [directory, ...numbers] = process.argv.slice(2);
const [rank, port] = numbers.map(Number) as [number, number];
const worldSize = 2;

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

const group = await connectWs({
  rank,
  worldSize,
  port,
  secret: 'a secret of some length',
  timeoutMs: 30_000,
  onListen: (found) => {
    if (rank === 0) {
      print(`port ${found}`);
    }
  },
});
const backend = await createCpuBackend({ threads: 1 });
for (const [index, { name, run }] of CORE_CASES.entries()) {
  const device = new Device(backend, { seed: 7 });
  await run({ rank, worldSize, group, device }, join(directory!, String(index)));
  device.dispose();
  print(`passed ${name}`);
}
await group.close();
await backend.dispose();
