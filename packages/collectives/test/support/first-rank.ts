// Rank 0 of a job over ws, begun by itself: a test says who else comes.

import { type ConnectWsOptions, connectWs } from '@shardweave/collectives/ws';
import { SECRET } from './ws-harness.js';

/**
 * Begins rank 0 of two, unless other options are given. Resolves with its port and the promise of
 * its group.
 */
export async function beginFirst(options: Partial<ConnectWsOptions> = {}) {
  let tell: (port: number) => void = () => {};
  const listening = new Promise<number>((resolve) => {
    tell = resolve;
  });
  const joined = connectWs({
    rank: 0,
    worldSize: 2,
    port: 0,
    secret: SECRET,
    onListen: tell,
    ...options,
  });
  joined.catch(() => {}); // each test says what it expects of it
  return { port: await listening, joined };
}
