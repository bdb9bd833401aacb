// A member's way to its coordinator over a WebSocket. Where the connection ends or falls silent it
// dials again, since the coordinator may be started again; after nine seconds it gives up. Beside
// it the member's heartbeat worker tells the coordinator that the member lives, however long it
// computes.

import { every } from '../../../clock.js';
import type { CoordinatorEvents, CoordinatorLink } from '../../../membership/member.js';
import type { Said, Told } from '../../../membership/messages.js';
import { RENDEZVOUS_TARGET } from '../../../sockets/handshake.js';
import type { SocketPlatform } from '../../../sockets/socket-platform.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';
import { Pulse } from '../heartbeat/pulse.js';
import { Dialer, messageOf } from '../join/dialer.js';
import type { JoinerOptions } from '../join/joiner-options.js';
import type { PeerAddress } from '../join/rendezvous-messages.js';
import { parseTold } from './parse-membership-message.js';

/** The milliseconds between two signs of life of a coordinator. */
export const BEAT_MS = 1000;

/** The silence after which a coordinator, or a member, is taken to be stopped or cut off. */
export const SILENCE_MS = 4000;

/** Within ten seconds a member whose coordinator is gone knows it, and can save. */
const ALONE_MS = 9000;

/** The milliseconds that the last words may take. */
const CLOSE_MS = 1000;

export class CoordinatorSocket implements CoordinatorLink<PeerAddress> {
  readonly #options: JoinerOptions;
  readonly #sockets: SocketPlatform;
  readonly #sender: HeartbeatSender | undefined;
  #events: CoordinatorEvents<PeerAddress> | undefined;
  #socket: WireSocket | undefined;
  /** The connection over which the heartbeat worker beats. */
  #beats: WireSocket | undefined;
  #hasSpoken = false;
  #heardMs = 0;
  #isClosed = false;
  #stopWatching = () => {};
  #onClosed = () => {};

  /** @param options those of a rank that dials the rendezvous; see `memberOptions` */
  constructor(
    options: JoinerOptions,
    sockets: SocketPlatform,
    sender: HeartbeatSender | undefined,
  ) {
    this.#options = options;
    this.#sockets = sockets;
    this.#sender = sender;
  }

  /** Opens the first connection, which `start` takes. Resolves with the interface that it uses. */
  async open(): Promise<{ readonly socket: WireSocket; readonly localHost: string | undefined }> {
    const { rendezvous } = this.#options;
    return this.#dialer(this.#options.joinTimeoutMs).open('rendezvous', rendezvous);
  }

  /** Authenticates on a connection, and speaks over it from `start` on. Rejects with JoinError. */
  async enter(first: WireSocket): Promise<void> {
    this.#socket = await this.#reach(this.#options.joinTimeoutMs, first);
  }

  start(events: CoordinatorEvents<PeerAddress>): void {
    this.#events = events;
    this.#connected(this.#socket!);
  }

  say(said: Said<PeerAddress>): void {
    this.#socket?.sendText(JSON.stringify(said));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopWatching();
    this.#beats?.terminate();
    const socket = this.#socket;
    if (socket === undefined) {
      return;
    }
    const closed = new Promise<void>((resolve) => {
      this.#onClosed = resolve;
    });
    const stopTimer = this.#options.clock.setTimer(CLOSE_MS, () => socket.terminate());
    socket.close(1000, '');
    await closed;
    stopTimer();
  }

  #connected(socket: WireSocket): void {
    const { clock } = this.#options;
    this.#socket = socket;
    this.#heardMs = clock.now();
    const pulse = new Pulse(SILENCE_MS, this.#heardMs);
    this.#stopWatching = every(clock, BEAT_MS / 2, () => {
      if (pulse.isLost(this.#hasSpoken, clock.now())) {
        this.#lost(socket, `silent for ${SILENCE_MS} ms`);
      }
      this.#hasSpoken = false;
    });
    socket.setHandler({
      onBinary: () => this.#lost(socket, 'it sent bytes'),
      onText: (text) => this.#onText(socket, text),
      onClose: (code, reason) => {
        this.#onClosed();
        this.#lost(socket, reason || `its connection closed, code ${code}`);
      },
    });
    this.#events!.connected();
  }

  #onText(socket: WireSocket, text: string): void {
    if (socket !== this.#socket || this.#isClosed) {
      return;
    }
    this.#hasSpoken = true;
    this.#heardMs = this.#options.clock.now();
    let told: Told<PeerAddress> | undefined;
    try {
      told = parseTold(text);
    } catch (error) {
      this.#lost(socket, messageOf(error));
      return;
    }
    if (told !== undefined) {
      this.#events!.hear(told);
    }
    if (told?.type === 'welcome') {
      this.#beat(told.id).catch(() => undefined); // the coordinator is told less of this member
    }
  }

  /** Lets the heartbeat worker beat as the member of this id, in place of an older connection. */
  async #beat(id: number): Promise<void> {
    const sender = this.#sender;
    if (sender === undefined) {
      return;
    }
    this.#beats?.terminate();
    const options: JoinerOptions = { ...this.#options, rank: id, joinTimeoutMs: ALONE_MS };
    const socket = await new Dialer(options, this.#sockets, () => this.#isClosed).reach({
      role: 'heartbeat',
      target: RENDEZVOUS_TARGET,
      address: this.#options.rendezvous,
      open: (url) => sender.open(url),
    });
    this.#beats = socket;
    sender.beat(socket);
  }

  #lost(socket: WireSocket, reason: string): void {
    if (socket === this.#socket && !this.#isClosed) {
      this.#socket = undefined;
      this.#stopWatching();
      socket.terminate();
      void this.#connectAgain(reason);
    }
  }

  async #connectAgain(reason: string): Promise<void> {
    const { clock, rendezvous } = this.#options;
    const leftMs = this.#heardMs + ALONE_MS - clock.now();
    try {
      const socket = await this.#reach(Math.max(0, leftMs));
      if (this.#isClosed) {
        socket.terminate();
      } else {
        this.#connected(socket);
      }
    } catch (error) {
      const where = `${rendezvous.host}:${rendezvous.port}`;
      const why = `${reason}, and then ${messageOf(error).replace(/\.$/, '')}`;
      this.#events!.gone(`the coordinator at ${where} is gone (${why})`);
    }
  }

  async #reach(limitMs: number, first?: WireSocket): Promise<WireSocket> {
    const wanted = {
      role: 'rendezvous',
      target: RENDEZVOUS_TARGET,
      address: this.#options.rendezvous,
    } as const;
    const dialer = this.#dialer(limitMs);
    return dialer.reach(first === undefined ? wanted : { ...wanted, first });
  }

  #dialer(limitMs: number): Dialer {
    const proofMs = Math.min(this.#options.proofMs, Math.max(1, limitMs));
    const options: JoinerOptions = { ...this.#options, joinTimeoutMs: limitMs, proofMs };
    return new Dialer(options, this.#sockets, () => this.#isClosed);
  }
}
