// The connections of an elastic job's members to their coordinator, in a process that listens.

import { type Clock, every } from '../../../clock.js';
import { CoordinatorHost } from '../../../membership/coordinator-host.js';
import type {
  CoordinatorOptions,
  CoordinatorStatus,
} from '../../../membership/coordinator-options.js';
import type { Said, Told } from '../../../membership/messages.js';
import { REFUSED_CODE } from '../../../sockets/authenticate.js';
import type { Hello } from '../../../sockets/handshake.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { isRelayed } from '../join/relay.js';
import type { PeerAddress } from '../join/rendezvous-messages.js';
import { BEAT_MS } from './coordinator-socket.js';
import { EpochRelays } from './epoch-relays.js';
import { MemberPulses } from './member-pulses.js';
import { parseSaid } from './parse-membership-message.js';

/** A member that leaves more than this unread gets no further sign of life. */
const MAX_UNREAD_BYTES = 1024;

export interface CoordinatorHallOptions extends CoordinatorOptions {
  /** See ServeElasticOptions. */
  readonly about?: string | undefined;
}

export class CoordinatorHall {
  readonly #host: CoordinatorHost<PeerAddress>;
  readonly #sockets = new Map<number, WireSocket>();
  readonly #clock: Clock;
  readonly #about: string | undefined;
  readonly #stopBeats: () => void;
  /** The connections over which members' heartbeat workers beat. */
  readonly #pulses: MemberPulses;
  /** The connections between members that can't listen. */
  readonly relays: EpochRelays;
  #onEmpty = () => {};

  constructor(options: CoordinatorHallOptions, clock: Clock) {
    this.relays = new EpochRelays(clock);
    const onChange: CoordinatorOptions['onChange'] = (change) => {
      this.relays.form(change.phase === 'forming' ? change.epoch : undefined);
      options.onChange?.(change);
    };
    const send = (to: number, message: Told<PeerAddress>) => this.#send(to, message);
    const watched: CoordinatorOptions = { ...options, onChange };
    this.#host = new CoordinatorHost(watched, clock, send);
    this.#clock = clock;
    this.#about = options.about;
    this.#stopBeats = every(clock, BEAT_MS, () => this.#beat());
    this.#pulses = new MemberPulses(clock, (id, isSilent) => this.#host.silence(id, isSilent));
  }

  get status(): CoordinatorStatus {
    return this.#host.status;
  }

  /** Sends no further sign of life, and hears none. */
  stop(): void {
    this.#stopBeats();
    this.#pulses.close();
    this.relays.form(undefined);
  }

  /** Takes an authenticated socket from that host. */
  onPeer(hello: Hello, socket: WireSocket, from: string): void {
    if (isRelayed(hello)) {
      this.relays.onPeer(hello, socket);
    } else if (hello.role === 'heartbeat') {
      this.#pulses.hear(hello.rank, socket);
    } else {
      this.#welcome(socket, from);
    }
  }

  #welcome(socket: WireSocket, from: string): void {
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
