// Rank 0 of three for ws-page.test.ts, as a process that can be stopped. It adds up with two pages.

import { connectWs } from '@shardweave/collectives/ws';

const { SECRET = '', ORIGIN = '' } = process.env;

const group = await connectWs({
  rank: 0,
  worldSize: 3,
  port: 0,
  secret: SECRET,
  allowedOrigins: [ORIGIN],
  onListen: (port) => process.send?.(port),
});
const buffer = new Uint8Array(4096);
for (;;) {
  await group.allReduce(buffer, buffer, { dtype: 'f32', op: 'sum' });
}
