// A rank's end of a simulated network: the Transport that its endpoint sends through.

import type { ControlMessage, MessageHeader, Transport } from '../../transport.js';
import type { SeededRandom } from './seeded-random.js';
import type { SimulatedNetwork } from './simulated-network.js';
import type { SimulatedProcess } from './simulated-process.js';

/** The most time that a polite ending may take, by the seam: "at most about a second". */
const MAX_DRAIN_MS = 1000;

export interface SimulatedTransportOptions {
  readonly rank: number;
  readonly worldSize: number;
  readonly isLending: boolean;
  readonly network: SimulatedNetwork;
  readonly process: SimulatedProcess;
  readonly random: SeededRandom;
}

export class SimulatedTransport implements Transport {
  readonly isLending: boolean;
  readonly #options: SimulatedTransportOptions;
  #isClosed = false;

  constructor(options: SimulatedTransportOptions) {
    this.#options = options;
    this.isLending = options.isLending;
  }

  send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> {
    return this.#options.network.link(this.#options.rank, to).send(header, payload, onProgress);
  }

  sendControl(to: number, message: ControlMessage): void {
    const { network, rank } = this.#options;
    // The message travels as it is now, whatever happens to it later.
    const copy = structuredClone(message);
    network.link(rank, to).control(() => {
      network.trace(`${rank} -> ${to}: ${describeControl(copy)}`);
      network.listener(to).onControl(rank, copy);
    });
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    if (this.#isClosed) {
      return;
    }
    this.#isClosed = true;
    const { network, rank, process, random } = this.#options;
    network.trace(`rank ${rank} closes (${how})`);
    if (how === 'drop') {
      network.breakLinks(rank, 'its connection closed');
      await process.sleep(random.between(0, MAX_DRAIN_MS));
      return;
    }
    const peers = network.peers(rank);
    for (const peer of peers) {
      network.link(peer, rank).wire.deafen();
    }
    await Promise.all(peers.map((peer) => this.#sayGoodbye(peer)));
  }

  terminate(): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#options.network.breakLinks(this.#options.rank, 'terminated');
    }
  }

  async #sayGoodbye(peer: number): Promise<void> {
    const { network, rank, process } = this.#options;
    const link = network.link(rank, peer);
    const isDrained = await new Promise<boolean>((resolve) => {
      const cancel = process.setTimer(MAX_DRAIN_MS, () => resolve(false));
      void link.drained().then(() => {
        cancel();
        resolve(true);
      });
    });
    link.shut();
    network.endWith(rank, peer, true, () => {
      if (isDrained) {
        network.leave(peer, rank);
      } else {
        network.lose(peer, rank, 'it closed with messages unsent');
      }
    });
  }
}

function describeControl(message: ControlMessage): string {
  if (message.type === 'failure') {
    const { kind, origin, reason } = message.failure;
    return `failure, ${kind} of rank ${origin}: ${reason}`;
  }
  return `${message.type} in ${message.group} #${message.sequence}`;
}
