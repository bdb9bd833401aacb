// A rank of a job whose ranks are on hosts with a slow way between them, or with 'attack' a host
// that opens 300 connections a second to rank 0 and says nothing.

import { type ConnectWsOptions, connectWs } from '@shardweave/collectives/ws';
import { begin } from './attacks.js';
import { HEAD_ATTACKS } from './head-attacks.js';

process.on('disconnect', () => process.exit());
process.on('message', async (order: ConnectWsOptions | 'attack') => {
  if (order === 'attack') {
    const [address, port] = process.argv.slice(2);
    begin(HEAD_ATTACKS['bare connects, 300 a second']!, Number(port), address);
    process.send!({ type: 'attacking' });
    return;
  }
  try {
    const onListen = (port: number) => process.send!({ type: 'listening', port });
    const group = await connectWs({ ...order, onListen });
    process.send!({ type: 'formed' });
    await group.barrier();
    await group.close();
    process.exit();
  } catch (error) {
    process.send!({ type: 'unjoined', message: String(error) });
  }
});
process.send!({ type: 'ready' });
