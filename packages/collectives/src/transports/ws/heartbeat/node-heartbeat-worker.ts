// The heartbeat worker in Node: it opens and accepts connections, passes their handshakes on to the
// rank's own thread, which has the secret, and beats on those that are authenticated. The
// build bundles it into one text (see tooling/workers), so it imports only Node's modules and this
// package's.

import type { Socket } from 'node:net';
import { Listener } from '../../../sockets/listener.js';
import { sessionOf } from '../../../sockets/tls-psk.js';
import { acceptUpgrade, requestUpgrade } from '../../../sockets/upgrade.js';
import { HeartbeatConnection } from './heartbeat-connection.js';
import {
  type HeartbeatCommand,
  type HeartbeatEvent,
  MAX_UNREAD_BYTES,
} from './heartbeat-messages.js';

type Command<Type extends HeartbeatCommand['type']> = HeartbeatCommand & { readonly type: Type };

export class NodeHeartbeatWorker {
  readonly #tell: (event: HeartbeatEvent) => void;
  readonly #connections = new Map<number, HeartbeatConnection>();
  readonly #beating = new Set<HeartbeatConnection>();
  #listener: Listener | undefined;
  #numAccepted = 0;

  constructor(tell: (event: HeartbeatEvent) => void) {
    this.#tell = tell;
  }

  obey(command: HeartbeatCommand): void {
    switch (command.type) {
      case 'start':
        setInterval(() => this.#beat(), command.heartbeatMs);
        return;
      case 'open':
        void this.#open(command);
        return;
      case 'listen':
        void this.#listen(command);
        return;
      case 'stop listening':
        this.#listener?.close();
        this.#tell({ type: 'stopped listening' });
        return;
      default: {
        const connection = this.#connections.get(command.id); // it may have closed meanwhile
        if (connection !== undefined) {
          this.#obeyAbout(connection, command);
        }
      }
    }
  }

  #obeyAbout(
    connection: HeartbeatConnection,
    command: Command<'send' | 'trust' | 'beat' | 'close'>,
  ): void {
    if (command.type === 'send') {
      connection.send(command.bytes);
    } else if (command.type === 'trust') {
      connection.trust();
      this.#listener?.trust(connection.name);
    } else if (command.type === 'beat') {
      this.#beating.add(connection);
    } else if (command.code === undefined) {
      connection.drop();
    } else {
      connection.close(command.code, command.reason);
    }
  }

  async #open({ id, url, tls }: Command<'open'>): Promise<void> {
    try {
      const { socket, rest } = await requestUpgrade(url, tls);
      this.#tell({ type: 'open', id, session: sessionOf(socket) });
      this.#adopt(id, socket, { isClient: true }).begin(rest);
    } catch (error) {
      this.#tell({ type: 'closed', id, code: 1006, reason: (error as Error).message });
    }
  }

  async #listen({ host, policy }: Command<'listen'>): Promise<void> {
    try {
      const listener = await Listener.open({ host, port: 0 }, policy, {
        onUpgrade: ({ key }, socket, from) => {
          acceptUpgrade(socket, key);
          const id = -++this.#numAccepted;
          this.#tell({ type: 'accepted', id, from, session: sessionOf(socket) });
          this.#adopt(id, socket, { isClient: false }).begin();
        },
        onRefused: (turnedAway) => this.#tell({ type: 'refused', turnedAway }),
      });
      this.#listener = listener;
      this.#tell({ type: 'listening', port: listener.port });
    } catch {
      this.#tell({ type: 'listening', port: 0 });
    }
  }

  #adopt(
    id: number,
    socket: Socket,
    { isClient }: { readonly isClient: boolean },
  ): HeartbeatConnection {
    const connection = new HeartbeatConnection(socket, {
      isClient,
      onBinary: (bytes) => this.#tell({ type: 'binary', id, bytes }),
      onClose: (code, reason) => {
        this.#connections.delete(id);
        this.#beating.delete(connection);
        this.#tell({ type: 'closed', id, code, reason });
      },
    });
    this.#connections.set(id, connection);
    return connection;
  }

  #beat(): void {
    for (const connection of this.#beating) {
      if (connection.unsentBytes < MAX_UNREAD_BYTES) {
        connection.send(BEAT);
      }
    }
  }
}

const BEAT = new Uint8Array(0);
