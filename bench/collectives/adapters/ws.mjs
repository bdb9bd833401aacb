// Ranks as processes over WebSockets, which connectWs joins.
import { processGroupEngine } from '../process-group-engine.mjs';

export async function open({ rank, worldSize, exchange, job }) {
  const { connectWs } = await import(job.bundle ?? '../../../packages/collectives/dist/ws.js');
  const options = { rank, worldSize, secret: job.secret, ...job.connect };
  const group = await (rank === 0
    ? connectWs({ ...options, port: 0, onListen: exchange })
    : exchange().then(([port]) => connectWs({ ...options, port })));
  return processGroupEngine({ name: 'ws', group, ...job.engine });
}
