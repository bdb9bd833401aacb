// Signs of life of a simulated process, which go on while it lives and is not stopped.

import { every } from '../../src/clock.js';
import type { WireSocket } from '../../src/sockets/wire-socket.js';
import type { HeartbeatSender } from '../../src/transports/ws/heartbeat/heartbeat-sender.js';
import type { SimulatedSockets } from './simulated-sockets.js';

const BEAT = new Uint8Array(0);

export class SimulatedHeartbeats implements HeartbeatSender {
  readonly #sockets: SimulatedSockets;
  readonly #beating = new Set<WireSocket & { readonly hasEnded?: boolean }>();
  readonly #stop: () => void;

  constructor(sockets: SimulatedSockets, heartbeatMs: number) {
    this.#sockets = sockets;
    this.#stop = every(sockets.process, heartbeatMs, () => {
      for (const socket of this.#beating) {
        if (socket.hasEnded) {
          this.#beating.delete(socket);
        } else {
          socket.send(BEAT);
        }
      }
    });
  }

  async open(url: string): Promise<WireSocket> {
    return (await this.#sockets.open(url)).socket;
  }

  beat(socket: WireSocket): void {
    this.#beating.add(socket);
  }

  async close(): Promise<void> {
    this.#stop();
    for (const socket of this.#beating) {
      socket.terminate();
    }
  }
}
