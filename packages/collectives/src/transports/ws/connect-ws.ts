// Forms a job over WebSockets: all ranks meet at rank 0, which tells each where the others listen;
// then every pair gets a direct link, opened by the higher rank. Node only.

import { WebSocket } from 'ws';
import { DEFAULT_TIMEOUT_MS, Endpoint } from '../../endpoint.js';
import { JoinError } from '../../errors.js';
import type { ProcessGroup, TraceHandler } from '../../process-group.js';
import { TransportGroup } from '../../transport-group.js';
import { Acceptor, MAX_MESSAGE_BYTES } from './acceptor.js';
import { greetingOf, PROOF_MS, prove } from './handshake.js';
import { type PeerAddress, WsLink } from './ws-link.js';
import { WsTransport } from './ws-transport.js';

export interface ConnectWsOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** Where rank 0 listens. Default: 127.0.0.1; other ranks listen on the interface they reach it by. */
  readonly address?: string;
  /** Rank 0's port. There, 0 takes a free one: see `onListen`. */
  readonly port: number;
  /** Known to all ranks of the job and nobody else, made by the launcher. At least 16 characters. */
  readonly secret: string;
  /** On rank 0: the port it listens on, for the launcher to pass on. */
  readonly onListen?: (port: number) => void;
  /** Milliseconds for all ranks to come. Default: 30 s. */
  readonly joinTimeoutMs?: number;
  /** Milliseconds until a call fails on every rank. Default: ten minutes. */
  readonly timeoutMs?: number;
  /** Milliseconds between signs of life. Default: 1 s. */
  readonly heartbeatMs?: number;
  /**
   * Milliseconds of silence after which a peer counts as lost. A rank that computes in JavaScript
   * says nothing meanwhile, so this is longer than any step's synchronous part. Default: 60 s. A
   * process that ended is noticed at once, by its closed connection.
   */
  readonly silenceMs?: number;
  readonly onTrace?: TraceHandler;
}

/** A socket whose listener has greeted. */
interface Opened {
  readonly socket: WebSocket;
  readonly nonce: Buffer;
  /** The interface it goes out by. */
  readonly localAddress: string;
}

const LOOPBACK = '127.0.0.1';
const RETRY_MS = 50;
const JOIN_TIMEOUT_MS = 30_000;
const HEARTBEAT_MS = 1000;
const SILENCE_MS = 60_000;
const MIN_SECRET_LENGTH = 16;

/** Joins the job and resolves when this rank is linked to every other. Rejects with JoinError. */
export async function connectWs(options: ConnectWsOptions): Promise<ProcessGroup> {
  return (await connectWsEndpoint(options)).group;
}

/** The same with the endpoint, for tests that kill a rank. */
export async function connectWsEndpoint(options: ConnectWsOptions) {
  checkOptions(options);
  const joiner = new Joiner(options);
  return { group: await joiner.join(), endpoint: joiner.endpoint };
}

class Joiner {
  readonly endpoint: Endpoint;
  readonly #options: ConnectWsOptions;
  readonly #transport: WsTransport;
  readonly #deadline: number;
  readonly #expected: Set<number>;
  readonly #addresses: PeerAddress[] = [];
  readonly #table: Promise<readonly PeerAddress[]>;
  readonly #allAccepted: Promise<void>;
  #onAllAccepted: () => void = () => {};
  #acceptor: Acceptor | undefined;

  constructor(options: ConnectWsOptions) {
    const { rank, worldSize } = options;
    this.#options = options;
    this.#deadline = performance.now() + (options.joinTimeoutMs ?? JOIN_TIMEOUT_MS);
    this.#expected = new Set(Array.from({ length: worldSize - rank - 1 }, (_, i) => rank + 1 + i));
    this.#allAccepted = new Promise((resolve) => {
      this.#onAllAccepted = resolve;
    });
    let onTable: (addresses: readonly PeerAddress[]) => void = () => {};
    this.#table = new Promise((resolve) => {
      onTable = resolve;
    });
    this.endpoint = new Endpoint({ rank, worldSize });
    this.#transport = new WsTransport({
      listener: this.endpoint,
      heartbeatMs: options.heartbeatMs ?? HEARTBEAT_MS,
      silenceMs: options.silenceMs ?? SILENCE_MS,
      onTable,
    });
    this.endpoint.attach(this.#transport);
  }

  async join(): Promise<ProcessGroup> {
    const { rank, worldSize } = this.#options;
    const lateness = new AbortController();
    try {
      const formed = rank === 0 ? this.#meetAll() : this.#findAll();
      formed.catch(() => {}); // where one of the others rejects first
      await Promise.race([formed, this.#rejectWhenLate(lateness.signal), this.#rejectOnFailure()]);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      this.endpoint.fail({ kind: 'aborted', origin: rank, reason });
      throw error;
    } finally {
      lateness.abort();
      this.#acceptor?.close();
    }
    return new TransportGroup({
      endpoint: this.endpoint,
      id: 'world',
      members: Array.from({ length: worldSize }, (_, r) => r),
      timeoutMs: this.#options.timeoutMs ?? DEFAULT_TIMEOUT_MS,
      onTrace: this.#options.onTrace,
    });
  }

  /** Rank 0: waits for everybody, then tells each where the others are. */
  async #meetAll(): Promise<void> {
    const { address = LOOPBACK, port, onListen, worldSize } = this.#options;
    if (worldSize === 1) {
      return;
    }
    await this.#listen(address, port);
    onListen?.(this.#acceptor!.port);
    await this.#allAccepted;
    for (let peer = 1; peer < worldSize; peer++) {
      this.#transport.link(peer)!.sendControl({ type: 'table', addresses: this.#addresses });
    }
  }

  /** Other ranks: join at rank 0, then open links to lower ranks and accept higher ones. */
  async #findAll(): Promise<void> {
    const { address = LOOPBACK, port, rank } = this.#options;
    const first = await this.#open({ host: address, port }, { retries: true });
    if (this.#expected.size > 0) {
      await this.#listen(first.localAddress, 0);
    } else {
      this.#onAllAccepted();
    }
    await this.#prove(first, 0);
    const addresses = await this.#table;
    for (let peer = 1; peer < rank; peer++) {
      await this.#prove(await this.#open(addresses[peer]!, { retries: false }), peer);
    }
    await this.#allAccepted;
  }

  /** Resolves when higher ranks can come. */
  async #listen(host: string, port: number): Promise<void> {
    const { rank, worldSize, secret } = this.#options;
    try {
      this.#acceptor = await Acceptor.listen({
        rank,
        worldSize,
        secret,
        host,
        port,
        expected: this.#expected,
        onPeer: (hello, socket, from) => {
          this.#addresses[hello.rank] = { host: from, port: hello.port };
          this.#transport.addLink(new WsLink(socket, hello.rank, this.#transport));
          if (this.#expected.size === 0) {
            this.#onAllAccepted();
          }
        },
      });
    } catch (error) {
      throw this.#joinError(`can't listen on ${host}:${port}: ${(error as Error).message}.`);
    }
  }

  async #open(to: PeerAddress, { retries }: { readonly retries: boolean }): Promise<Opened> {
    const host = to.host.includes(':') ? `[${to.host}]` : to.host;
    for (;;) {
      const socket = new WebSocket(`ws://${host}:${to.port}`, {
        perMessageDeflate: false,
        maxPayload: MAX_MESSAGE_BYTES,
        handshakeTimeout: PROOF_MS,
        skipUTF8Validation: true,
        // Zeros, which the library takes as nothing to do: both ends are ours, no proxy between.
        generateMask: (mask) => mask.fill(0),
      });
      let localAddress = LOOPBACK;
      socket.once('upgrade', (response) => {
        localAddress = response.socket.localAddress?.replace(/^::ffff:/, '') ?? LOOPBACK;
      });
      try {
        const nonce = await greetingOf(socket);
        return { socket, nonce, localAddress };
      } catch (error) {
        socket.terminate();
        const { code, message } = error as NodeJS.ErrnoException;
        const isEarly = retries && code === 'ECONNREFUSED' && performance.now() < this.#deadline;
        if (!isEarly) {
          throw this.#joinError(`no rank of the job at ${host}:${to.port} (${code ?? message}).`);
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  async #prove({ socket, nonce }: Opened, target: number): Promise<void> {
    const { rank, worldSize, secret } = this.#options;
    const hello = { rank, target, worldSize, port: this.#acceptor?.port ?? 0 };
    const onProven = () => {
      this.#transport.addLink(new WsLink(socket, target, this.#transport));
    };
    try {
      await prove(socket, { secret, nonce, hello, onProven });
    } catch (error) {
      socket.terminate();
      throw this.#joinError(`refused by rank ${target}: ${(error as Error).message}.`);
    }
  }

  async #rejectWhenLate(signal: AbortSignal): Promise<never> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, Math.max(0, this.#deadline - performance.now()));
      signal.addEventListener('abort', () => clearTimeout(timer));
    });
    const { joinTimeoutMs = JOIN_TIMEOUT_MS } = this.#options;
    const missing = [...this.#expected].join(', ');
    throw this.#joinError(
      missing === ''
        ? `the job was not complete within ${joinTimeoutMs} ms.`
        : `no sign of ranks ${missing} within ${joinTimeoutMs} ms.`,
    );
  }

  async #rejectOnFailure(): Promise<never> {
    const failure = await this.endpoint.failed;
    const what = failure.kind === 'peer-lost' ? `peer ${failure.origin} lost` : failure.kind;
    throw this.#joinError(`rank ${failure.origin}: ${what} (${failure.reason})`);
  }

  #joinError(message: string): JoinError {
    const { rank, worldSize } = this.#options;
    return new JoinError({ rank, worldSize }, message);
  }
}

/** The caller's mistakes. */
function checkOptions({ rank, worldSize, secret, port }: ConnectWsOptions): void {
  const isCount = (x: number, from: number) => Number.isInteger(x) && x >= from;
  if (!isCount(worldSize, 1) || !isCount(rank, 0) || rank >= worldSize) {
    throw new JoinError({ rank, worldSize }, 'expected a rank below a positive world size.');
  }
  if (!isCount(port, rank === 0 || worldSize === 1 ? 0 : 1) || port > 65535) {
    throw new JoinError({ rank, worldSize }, `expected rank 0's port, got ${port}.`);
  }
  if (secret.length < MIN_SECRET_LENGTH) {
    throw new JoinError(
      { rank, worldSize },
      `expected a secret of at least ${MIN_SECRET_LENGTH} characters, got ${secret.length}.`,
    );
  }
}
