// The part of `connectWs` that Node and pages share: a rank's endpoint over links that its Joiner
// makes.

import { type Clock, systemClock } from '../../../clock.js';
import { Endpoint } from '../../../endpoint/endpoint.js';
import { JoinError } from '../../../errors.js';
import { checkGroupOptions, createWorldGroup } from '../../../group/group-options.js';
import { PROOF_MS } from '../../../sockets/authenticate.js';
import { runDigest } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import { WsTransport } from '../link/ws-transport.js';
import type { WsPlatform } from '../wire/ws-platform.js';
import {
  checkJobOptions,
  JOIN_TIMEOUT_MS,
  type JobOptions,
  NO_RUN_ID,
  silencesOf,
} from './job-options.js';
import { Joiner } from './joiner.js';
import { checkSilence, type JoinerOptions } from './joiner-options.js';

/** What differs between Node and pages. */
export interface JoinEnvironment
  extends Pick<JoinerOptions, 'schemeTo' | 'listen' | 'onListen' | 'describeRefusals'> {
  readonly isHosted: boolean;
  /** See JoinerOptions. Default: five seconds. */
  readonly proofMs?: number | undefined;
  /** The time of joining and of signs of life. Default: the system's. */
  readonly clock?: Clock;
  createPlatform(): WsPlatform;
}

/**
 * Throws the mistakes that the caller of any rank can make, as JoinError or CollectiveUsageError.
 */
export function checkJoin(options: JobOptions, { isHosted }: { readonly isHosted: boolean }): void {
  const { rank, worldSize } = options;
  checkJobOptions(options, { hosts: isHosted });
  checkGroupOptions(options, { rank, worldSize, call: 'connectWs' });
  checkSilence(options);
  checkChoice(options, 'heartbeat', ['worker', 'link']);
}

/** Throws JoinError where the option is given and is none of `choices`. */
export function checkChoice<Name extends string>(
  options: JobOptions & { readonly [name in Name]?: string },
  name: Name,
  choices: readonly string[],
): void {
  const { rank, worldSize, [name]: value } = options;
  if (value !== undefined && !choices.includes(value)) {
    const listed = choices.map((choice) => `'${choice}'`).join(' or ');
    throw new JoinError({ rank, worldSize }, `expected ${name} ${listed}, got ${String(value)}.`);
  }
}

/** Resolves when every rank is linked to every other. Rejects with JoinError. */
export async function joinOverWs(
  options: JobOptions & { readonly address?: string },
  environment: JoinEnvironment,
) {
  const { rank, worldSize, secret, attempt = 0, address: host = LOOPBACK, port } = options;
  const endpoint = new Endpoint(rank, worldSize, options);
  const { schemeTo, listen, onListen, describeRefusals, isHosted } = environment;
  const { clock = systemClock } = environment;
  const { heartbeatMs, silenceMs, linkSilenceMs } = silencesOf(options);
  const transport = new WsTransport({ listener: endpoint, rank, worldSize, heartbeatMs, clock });
  endpoint.attach(transport);
  const joiner = new Joiner(
    {
      schemeTo,
      listen,
      onListen,
      describeRefusals,
      heartbeatMs,
      silenceMs,
      linkSilenceMs,
      rank,
      worldSize,
      attempt,
      run: runDigest(options.runId ?? NO_RUN_ID),
      secret,
      clock,
      rendezvous: { host, port, isHosted },
      proofMs: environment.proofMs ?? PROOF_MS,
      joinTimeoutMs: options.joinTimeoutMs ?? JOIN_TIMEOUT_MS,
      route: options.route ?? ((_, to) => to),
    },
    { platform: environment.createPlatform(), endpoint, transport },
  );
  await joiner.join();
  return { group: createWorldGroup(endpoint, options), endpoint };
}
