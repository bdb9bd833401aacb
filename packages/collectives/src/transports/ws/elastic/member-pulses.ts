// The signs of life of an elastic job's members at their coordinator. While members are at work
// they hear one another. Between two epochs they have no links, and then this is how one that is
// stopped is told from one that computes on to its next edge.

import { type Clock, every } from '../../../clock.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { Pulse } from '../heartbeat/pulse.js';
import { SILENCE_MS } from './coordinator-socket.js';

/** The milliseconds between two looks. */
const LOOK_MS = 500;

interface Heard {
  readonly socket: WireSocket;
  readonly pulse: Pulse;
  hasSpoken: boolean;
  isSilent: boolean;
}

export class MemberPulses {
  readonly #members = new Map<number, Heard>();
  readonly #clock: Clock;
  readonly #onSilence: (id: number, isSilent: boolean) => void;
  readonly #stopLooking: () => void;

  /** @param onSilence called when a member has fallen silent, or speaks again */
  constructor(clock: Clock, onSilence: (id: number, isSilent: boolean) => void) {
    this.#clock = clock;
    this.#onSilence = onSilence;
    this.#stopLooking = every(clock, LOOK_MS, () => this.#look());
  }

  /** Takes the authenticated connection over which a member beats, in place of an older one. */
  hear(id: number, socket: WireSocket): void {
    this.#members.get(id)?.socket.terminate();
    const pulse = new Pulse(SILENCE_MS, this.#clock.now());
    const heard: Heard = { socket, pulse, hasSpoken: true, isSilent: false };
    this.#members.set(id, heard);
    socket.setHandler({
      onBinary: () => {
        heard.hasSpoken = true;
      },
      onText: () => socket.terminate(),
      onClose: () => {
        // Whoever has died has lost its other connection, too.
        if (this.#members.get(id) === heard) {
          this.#members.delete(id);
        }
      },
    });
  }

  close(): void {
    this.#stopLooking();
    for (const { socket } of this.#members.values()) {
      socket.terminate();
    }
  }

  #look(): void {
    const nowMs = this.#clock.now();
    for (const [id, heard] of this.#members) {
      const isSilent = heard.pulse.isLost(heard.hasSpoken, nowMs);
      heard.hasSpoken = false;
      if (isSilent !== heard.isSilent) {
        heard.isSilent = isSilent;
        this.#onSilence(id, isSilent);
      }
    }
  }
}
