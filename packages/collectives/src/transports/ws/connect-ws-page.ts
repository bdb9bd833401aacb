// A rank in a page joins a job over native WebSockets: the `browser` side of `connectWs`. A page can't
// listen, so it links to Node ranks directly and to other pages through the rendezvous' process.

import { Endpoint } from '../../endpoint.js';
import { checkGroupOptions, createWorldGroup } from '../../group-options.js';
import type { ProcessGroup } from '../../process-group.js';
import {
  checkJobOptions,
  JOIN_TIMEOUT_MS,
  type JobOptions,
  LOOPBACK,
  silencesOf,
} from './job-options.js';
import { checkSilence, Joiner } from './joiner.js';
import { PagePlatform } from './page-platform.js';
import { WsTransport } from './ws-transport.js';

export interface ConnectWsPageOptions extends JobOptions {
  /** Where the rendezvous is: rank 0 in Node, or `serveRendezvous`. Default: 127.0.0.1. */
  readonly address?: string;
  /** wss, as all ranks. Default: whether the page itself came by https. */
  readonly isSecure?: boolean;
}

/**
 * Joins the job and resolves when every rank is linked to every other. Rejects with JoinError. The
 * rendezvous must allow the page's origin.
 */
export async function connectWs(options: ConnectWsPageOptions): Promise<ProcessGroup> {
  return (await connectWsEndpoint(options)).group;
}

/** The same with the endpoint, for tests that kill a rank. */
export async function connectWsEndpoint(options: ConnectWsPageOptions) {
  const { rank, worldSize, secret, attempt = 0, address: host = LOOPBACK, port } = options;
  checkJobOptions(options, { hosts: false });
  checkGroupOptions(options, { rank, worldSize, call: 'connectWs' });
  checkSilence(options);
  const endpoint = new Endpoint({ ...options, rank, worldSize });
  const silences = silencesOf(options);
  const transport = new WsTransport({
    listener: endpoint,
    worldSize,
    heartbeatMs: silences.heartbeatMs,
  });
  endpoint.attach(transport);
  const joiner = new Joiner(
    {
      rank,
      worldSize,
      attempt,
      secret,
      rendezvous: { host, port, isHosted: false },
      isSecure: options.isSecure ?? globalThis.location?.protocol === 'https:',
      listen: false,
      joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
      onListen: undefined,
      ...silences,
      route: options.route ?? ((_, to) => to),
    },
    { platform: new PagePlatform(), endpoint, transport },
  );
  await joiner.join();
  return { group: createWorldGroup(endpoint, options), endpoint };
}
