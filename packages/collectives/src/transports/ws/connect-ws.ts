// A rank in a Node process joins a job over WebSockets. See joiner.ts for how.

import { Endpoint } from '../../endpoint.js';
import { JoinError } from '../../errors.js';
import { checkGroupOptions, createWorldGroup } from '../../group-options.js';
import type { ProcessGroup } from '../../process-group.js';
import {
  checkJobOptions,
  JOIN_TIMEOUT_MS,
  type JobOptions,
  LOOPBACK,
  silencesOf,
} from './job-options.js';
import { checkSilence, Joiner, type ListenWish } from './joiner.js';
import { type ListenSecurityOptions, securityOf } from './listen-security.js';
import { NodePlatform } from './node-platform.js';
import { RefusalLog } from './refusal-log.js';
import { WsTransport } from './ws-transport.js';

export interface ConnectWsOptions extends JobOptions, ListenSecurityOptions {
  /** Where the rendezvous is; rank 0, which hosts it by default, listens there. Default: 127.0.0.1. */
  readonly address?: string;
  /** 'elsewhere': another process runs `serveRendezvous`, and rank 0 visits it too. Default: 'rank 0'. */
  readonly rendezvous?: 'rank 0' | 'elsewhere';
  /** Where this rank listens, if it doesn't host the rendezvous. False: it only opens links. */
  readonly listen?: ListenWish | false;
  /**
   * 'link': signs of life from the rank's own thread, over its links, judged by `linkSilenceMs`. Spares
   * a thread where many ranks live in one process, and takes one that computes for dead in time.
   * Default: 'worker'.
   */
  readonly heartbeat?: 'worker' | 'link';
  /** On rank 0, when it hosts: the port it listens on, for the launcher to pass on. */
  readonly onListen?: (port: number) => void;
}

/** Joins the job and resolves when every rank is linked to every other. Rejects with JoinError. */
export async function connectWs(options: ConnectWsOptions): Promise<ProcessGroup> {
  return (await connectWsEndpoint(options)).group;
}

/** The same with the endpoint, for tests that kill a rank. */
export async function connectWsEndpoint(options: ConnectWsOptions) {
  const { rank, worldSize, secret, attempt = 0, address: host = LOOPBACK, port } = options;
  const isHosted = rank === 0 && options.rendezvous !== 'elsewhere';
  checkJobOptions(options, { hosts: isHosted });
  checkGroupOptions(options, { rank, worldSize, call: 'connectWs' });
  checkSilence(options);
  checkChoice(options, 'rendezvous', ['rank 0', 'elsewhere']);
  checkChoice(options, 'heartbeat', ['worker', 'link']);
  const refusals = new RefusalLog(options.onRefused);
  const { tls, listen = {} } = options;
  if (tls !== undefined && (isHosted || listen !== false) && !(tls.key && tls.cert)) {
    throw new JoinError({ rank, worldSize }, 'expected tls.key and tls.cert: this rank listens.');
  }
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
      rendezvous: { host, port, isHosted },
      isSecure: options.tls !== undefined,
      listen,
      joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
      onListen: options.onListen,
      describeRefusals: () => refusals.describe(),
      ...silences,
      route: options.route ?? ((_, to) => to),
    },
    {
      platform: new NodePlatform({
        ...securityOf({ ...options, onRefused: refusals.add }),
        heartbeat: options.heartbeat,
      }),
      endpoint,
      transport,
    },
  );
  await joiner.join();
  return { group: createWorldGroup(endpoint, options), endpoint };
}

function checkChoice(
  options: ConnectWsOptions,
  name: 'rendezvous' | 'heartbeat',
  choices: readonly string[],
): void {
  const { rank, worldSize, [name]: value } = options;
  if (value !== undefined && !choices.includes(value)) {
    const listed = choices.map((choice) => `'${choice}'`).join(' or ');
    throw new JoinError({ rank, worldSize }, `expected ${name} ${listed}, got ${String(value)}.`);
  }
}
