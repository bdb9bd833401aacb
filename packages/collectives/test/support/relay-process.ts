// A rendezvous in a process of its own, which relays between ranks that can't listen. Bundled and
// started by fault-job.ts.

import { serveRendezvous } from '@shardweave/collectives/ws';

const [worldSize, secret] = process.argv.slice(2);
const server = await serveRendezvous({ worldSize: Number(worldSize), secret: secret! });
process.send!({ port: server.port });
