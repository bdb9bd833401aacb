// This starts rank 0 of a job over ws by itself, so that a test decides who else comes.

import { type ConnectWsOptions, connectWs } from '@shardweave/collectives/ws';
import { SECRET } from './ws-harness.js';

/**
 * Begins rank 0 of two ranks, unless `options` says otherwise. Resolves with its port and the
 * promise of its group.
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
  joined.catch(() => {}); // Each test checks how this ends.
  return { port: await listening, joined };
}
