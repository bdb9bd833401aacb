// This is a rendezvous in a process of its own, which relays between ranks that can't listen.
// fault-job.ts bundles and starts it.

import { serveRendezvous } from '@shardweave/collectives/ws';

const [worldSize, secret] = process.argv.slice(2);
const server = await serveRendezvous({ worldSize: Number(worldSize), secret: secret! });
process.send!({ port: server.port });
