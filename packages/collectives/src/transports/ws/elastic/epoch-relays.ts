// Joins members that can't listen, such as two pages, in the coordinator's process. Each epoch has
// a relay of its own, which takes connections while that epoch forms. What it has joined goes on by
// itself until its ends close it.

import type { Clock } from '../../../clock.js';
import { REFUSED_CODE } from '../../../sockets/authenticate.js';
import type { Hello } from '../../../sockets/handshake.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { Relay } from '../join/relay.js';

export class EpochRelays {
  readonly #clock: Clock;
  #forming: { readonly epoch: number; readonly relay: Relay } | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Notes which epoch forms; none while members are at work, or are awaited. */
  form(epoch: number | undefined): void {
    if (this.#forming?.epoch !== epoch) {
      this.#forming?.relay.close();
      const relay = new Relay(new Promise(() => {}), this.#clock); // this method ends it
      this.#forming = epoch === undefined ? undefined : { epoch, relay };
    }
  }

  /** The reason why a member is turned away; undefined where it is not. */
  refusalOf(hello: Hello): string | undefined {
    const { epoch, relay } = this.#forming ?? {};
    return hello.attempt === epoch ? relay!.refusalOf(hello) : `epoch ${hello.attempt} is over`;
  }

  /** Takes an authenticated socket of role 'relay' or 'heartbeat relay'. */
  onPeer(hello: Hello, socket: WireSocket): void {
    const refusal = this.refusalOf(hello); // the epoch may have ended while it proved the secret
    if (refusal === undefined) {
      this.#forming!.relay.onPeer(hello, socket);
    } else {
      socket.close(REFUSED_CODE, refusal);
    }
  }
}
