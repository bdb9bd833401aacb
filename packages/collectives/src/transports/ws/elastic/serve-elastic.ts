// The coordinator of an elastic job in a Node process: the launcher's, or one of its own. It is no
// rank, and computes nothing.

import { type Clock, every, systemClock } from '../../../clock.js';
import { JoinError } from '../../../errors.js';
import { CoordinatorHost } from '../../../membership/coordinator-host.js';
import type {
  CoordinatorOptions,
  CoordinatorStatus,
} from '../../../membership/coordinator-options.js';
import type { Said, Told } from '../../../membership/messages.js';
import { REFUSED_CODE } from '../../../sockets/authenticate.js';
import { type Hello, isSameRun, RENDEZVOUS_TARGET, runDigest } from '../../../sockets/handshake.js';
import { LOOPBACK } from '../../../sockets/is-loopback.js';
import { type ListenSecurityOptions, securityOf } from '../../../sockets/listen-security.js';
import { NodeSockets } from '../../../sockets/node-sockets.js';
import { RefusalLog } from '../../../sockets/refusal-log.js';
import type { SocketListener } from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { checkJobOptions, NO_RUN_ID } from '../join/job-options.js';
import type { PeerAddress } from '../join/rendezvous-messages.js';
import { BEAT_MS } from './coordinator-socket.js';
import { ANY_MAX, type ElasticPlatform, NO_RANK } from './join-elastic.js';
import { MemberPulses } from './member-pulses.js';
import { MAX_ABOUT_BYTES, MAX_MEMBERS, parseSaid } from './parse-membership-message.js';

/** The options of `serveElastic`: who may be in the job, and where its members meet. */
export interface ServeElasticOptions extends CoordinatorOptions, ListenSecurityOptions {
  /** The job's secret, of at least 16 characters, which only its processes know. */
  readonly secret: string;
  /** See `JobOptions`. */
  readonly runId?: string;
  /** The address on which it listens. Default: 127.0.0.1. */
  readonly address?: string;
  /** The port on which it listens. Default: 0, which takes a free one. */
  readonly port?: number;
  /** A text of at most 32 KiB that members have as `about`, such as what the job computes. */
  readonly about?: string;
}

/** The coordinator of an elastic job. */
export interface ElasticServer {
  readonly port: number;
  readonly status: CoordinatorStatus;
  /** Ends the job for all who are in it, with a reason, and stops listening. */
  close(reason?: string): Promise<void>;
}

/** A member that leaves more than this unread gets no further sign of life. */
const MAX_UNREAD_BYTES = 1024;

/**
 * Resolves when it listens, and rejects with JoinError where it can't. It goes on until `close`.
 */
export async function serveElastic(options: ServeElasticOptions): Promise<ElasticServer> {
  const { min, max, secret, port = 0 } = options;
  checkJobOptions({ secret, rank: 0, worldSize: max, port, ...runOf(options) }, { hosts: true });
  if (!Number.isInteger(min) || min < 1 || min > max || max > MAX_MEMBERS) {
    const what = `expected 1 <= min <= max <= ${MAX_MEMBERS}, got min ${min} and max ${max}.`;
    throw new JoinError({ rank: 0, worldSize: max }, what);
  }
  const aboutBytes = new TextEncoder().encode(options.about).byteLength;
  if (aboutBytes > MAX_ABOUT_BYTES) {
    const what = `about has at most ${MAX_ABOUT_BYTES} bytes, got ${aboutBytes}.`;
    throw new JoinError({ rank: 0, worldSize: max }, what);
  }
  const refusals = new RefusalLog(options.onRefused);
  const security = securityOf({ ...options, worldSize: max, onRefused: refusals.add });
  return serveElasticOn(options, { sockets: new NodeSockets(security), clock: systemClock });
}

/** Listens on these sockets, at this time. */
export async function serveElasticOn(
  options: ServeElasticOptions,
  { sockets, clock }: ElasticPlatform,
): Promise<ElasticServer> {
  const { max, address: host = LOOPBACK, port = 0 } = options;
  const hall = new CoordinatorHall(options, clock);
  const run = runDigest(options.runId ?? NO_RUN_ID);
  const refusalOf = (hello: Hello): string | undefined => {
    if (!isSameRun(hello.run, run)) {
      return 'this is another run: its runId is not the same';
    }
    const isBeating = hello.role === 'heartbeat' && hello.target === RENDEZVOUS_TARGET;
    const isJoining = hello.role === 'rendezvous' && hello.rank === NO_RANK;
    if (!isBeating && !isJoining) {
      return 'this job is elastic: join it by joinElastic';
    }
    const isMeant = hello.worldSize === max || hello.worldSize === ANY_MAX;
    return isMeant ? undefined : `max is ${max} here, not ${hello.worldSize}`;
  };
  let listener: SocketListener;
  try {
    const onPeer = (hello: Hello, socket: WireSocket, from: string) =>
      hello.role === 'heartbeat'
        ? hall.pulses.hear(hello.rank, socket)
        : hall.welcome(socket, from);
    listener = await sockets.listen!({ host, port, refusalOf, onPeer });
  } catch (error) {
    hall.stop();
    throw new JoinError({ rank: 0, worldSize: max }, (error as Error).message);
  }
  return {
    port: listener.port,
    get status() {
      return hall.status;
    },
    close: async (reason = 'its coordinator was closed') => {
      listener.close();
      await hall.close(reason);
    },
  };
}

function runOf({ runId }: ServeElasticOptions): { readonly runId?: string } {
  return runId === undefined ? {} : { runId };
}

/** The connections of members to their coordinator. */
class CoordinatorHall {
  readonly #host: CoordinatorHost<PeerAddress>;
  readonly #sockets = new Map<number, WireSocket>();
  readonly #clock: Clock;
  readonly #about: string | undefined;
  readonly #stopBeats: () => void;
  /** The connections over which members' heartbeat workers beat. */
  readonly pulses: MemberPulses;
  #onEmpty = () => {};

  constructor(options: ServeElasticOptions, clock: Clock) {
    this.#host = new CoordinatorHost(options, clock, (to, message) => this.#send(to, message));
    this.#clock = clock;
    this.#about = options.about;
    this.#stopBeats = every(clock, BEAT_MS, () => this.#beat());
    this.pulses = new MemberPulses(clock, (id, isSilent) => this.#host.silence(id, isSilent));
  }

  get status(): CoordinatorStatus {
    return this.#host.status;
  }

  /** Sends no further sign of life, and hears none. */
  stop(): void {
    this.#stopBeats();
    this.pulses.close();
  }

  /** Takes a member's authenticated socket. */
  welcome(socket: WireSocket, from: string): void {
    const connection = this.#host.connect();
    this.#sockets.set(connection, socket);
    const drop = (reason: string) => socket.close(REFUSED_CODE, reason);
    socket.setHandler({
      onBinary: () => drop('a member sent bytes to the coordinator'),
      onText: (text) => {
        let said: Said<PeerAddress>;
        try {
          said = placed(parseSaid(text), from);
        } catch (error) {
          drop((error as Error).message);
          return;
        }
        this.#host.hear(connection, said);
      },
      onClose: () => {
        this.#sockets.delete(connection);
        this.#host.gone(connection);
        if (this.#sockets.size === 0) {
          this.#onEmpty();
        }
      },
    });
  }

  async close(reason: string): Promise<void> {
    this.#host.end(reason);
    this.stop();
    if (this.#sockets.size > 0) {
      await new Promise<void>((resolve) => {
        const stopTimer = this.#clock.setTimer(BEAT_MS, resolve);
        this.#onEmpty = () => {
          stopTimer();
          resolve();
        };
      });
    }
    for (const socket of this.#sockets.values()) {
      socket.terminate();
    }
  }

  #send(to: number, message: Told<PeerAddress>): void {
    const socket = this.#sockets.get(to);
    const isWelcome = message.type === 'welcome';
    const told = isWelcome ? { ...message, about: this.#about } : message;
    socket?.sendText(JSON.stringify(told));
    if (message.type === 'fenced' || message.type === 'ended') {
      socket?.close(1000, '');
    }
  }

  #beat(): void {
    for (const socket of this.#sockets.values()) {
      if (socket.unsentBytes < MAX_UNREAD_BYTES) {
        socket.sendText('{"type":"beat"}');
      }
    }
  }
}

/** What a member said, with the host that it comes from where it has named none. */
function placed(said: Said<PeerAddress>, from: string): Said<PeerAddress> {
  if (said.type !== 'here') {
    return said;
  }
  const { host, port, beats } = said.address;
  return { ...said, address: { host: host ?? from, port, beats } };
}
