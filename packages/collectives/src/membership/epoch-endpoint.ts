// A rank's end of one epoch of an elastic job. A lost peer ends the epoch and not the job, so calls
// reject with EpochOverError on all ranks, whoever notices first.

import { Endpoint, type EndpointOptions, type ProcessServices } from '../endpoint/endpoint.js';
import { lostOf } from '../failure.js';
import type { ControlMessage } from '../transport.js';

/** Takes the ranks that this one has found dead or cut off itself; perhaps none. */
export type OnLost = (lost: readonly number[], reason: string) => void;

export class EpochEndpoint extends Endpoint {
  readonly #onLost: OnLost;

  constructor(
    rank: number,
    worldSize: number,
    options: EndpointOptions,
    parts: { readonly onLost: OnLost; readonly services?: ProcessServices },
  ) {
    super(rank, worldSize, options, parts.services);
    this.#onLost = parts.onLost;
  }

  override onPeerLost(peer: number, reason: string, lost: readonly number[] = [peer]): void {
    this.end(`rank ${peer} is lost: ${reason}`, lost, peer);
    this.#onLost(lost, reason);
  }

  /** Without its relay it has no path to some peers, each of which may live. */
  override onRelayLost(reason: string): void {
    this.end(`the relay is lost: ${reason}`, []);
    this.#onLost([], reason);
  }

  /** Takes a peer's word; one that was stopped hears from it that it is lost itself. */
  override onControl(from: number, message: ControlMessage): void {
    if (message.type === 'failure' && message.failure.kind === 'peer-lost') {
      const { origin, reason } = message.failure;
      const lost = lostOf(message.failure);
      super.onControl(from, {
        type: 'failure',
        failure: { kind: 'epoch-over', origin, reason: `rank ${origin} is lost: ${reason}`, lost },
      });
    } else {
      super.onControl(from, message);
    }
  }

  /** Ends the epoch for all ranks, unless it is over. */
  end(reason: string, lost: readonly number[], origin = lost[0] ?? this.rank): void {
    this.fail({ kind: 'epoch-over', origin, reason, lost });
  }
}
