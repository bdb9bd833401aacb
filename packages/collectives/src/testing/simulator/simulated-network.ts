// All links of a job and what can happen to them: ranks that die, stop, are busy or leave, and
// links that are cut silently, heal, or break at once. It gives each rank its Transport.
//
// Note [silence]
// Heartbeats are not sent, but accounted for. A rank notices that a peer has been stopped or cut
// off after the silence limit and up to one heartbeat more, unless the peer has come back by then.

import { describeCall } from '../../call-signature.js';
import type { MessageHeader, Transport, TransportListener } from '../../transport.js';
import { randomConditions } from './link-conditions.js';
import type { SeededRandom } from './seeded-random.js';
import { SimulatedLink } from './simulated-link.js';
import { SimulatedProcess } from './simulated-process.js';
import { SimulatedTransport } from './simulated-transport.js';
import type { VirtualTime } from './virtual-time.js';

const SILENCE_MS = 4000;
const HEARTBEAT_MS = 500;

/** The longest time from the moment when a rank falls silent until its peers know. */
export const MAX_SILENCE_MS = SILENCE_MS + HEARTBEAT_MS;

/** A rank that comes back earlier than this has not been missed. */
export const MIN_SILENCE_MS = SILENCE_MS;

export interface SimulatedNetworkOptions {
  readonly worldSize: number;
  readonly time: VirtualTime;
  readonly random: SeededRandom;
  readonly trace: ((text: string) => void) | undefined;
}

export class SimulatedNetwork {
  readonly processes: readonly SimulatedProcess[];
  readonly #options: SimulatedNetworkOptions;
  /** The links by sender, then receiver. */
  readonly #links: SimulatedLink[][] = [];
  readonly #listeners: TransportListener[] = [];
  readonly #isLending: boolean;

  constructor(options: SimulatedNetworkOptions) {
    const { worldSize, time, random } = options;
    this.#options = options;
    this.#isLending = random.chance(0.3);
    const isRejecting = random.chance(0.5);
    const isSloppy = random.chance(0.3);
    const isCopying = random.chance(0.5);
    const scaleMs = random.pick([0, 0.02, 1, 30]);
    this.processes = ranks(worldSize).map(() => new SimulatedProcess(time, random.fork()));
    this.#links = ranks(worldSize).map((from) =>
      ranks(worldSize).map(
        (to) =>
          new SimulatedLink({
            from,
            to,
            conditions: randomConditions(random.fork(), scaleMs),
            time,
            random: random.fork(),
            process: this.processes[to]!,
            isLending: this.#isLending,
            isCopying,
            isRejecting,
            isSloppy,
            onMessage: (header) => this.#onMessage(from, to, header),
          }),
      ),
    );
  }

  /** The longest time that anything has taken on any link so far. */
  get maxDelayMs(): number {
    return Math.max(...this.#links.flat().map((link) => link.wire.maxDelayMs));
  }

  /** The rank's transport; `listener` receives what arrives. */
  attach(rank: number, listener: TransportListener): Transport {
    this.#listeners[rank] = listener;
    const { random } = this.#options;
    return new SimulatedTransport({
      rank,
      worldSize: this.#options.worldSize,
      isLending: this.#isLending,
      network: this,
      process: this.processes[rank]!,
      random: random.fork(),
    });
  }

  link(from: number, to: number): SimulatedLink {
    return this.#links[from]![to]!;
  }

  listener(rank: number): TransportListener {
    return this.#listeners[rank]!;
  }

  peers(rank: number): number[] {
    return ranks(this.#options.worldSize).filter((peer) => peer !== rank);
  }

  trace(text: string): void {
    this.#options.trace?.(text);
  }

  /** Ends the process of a rank; the kernel closes its connections. */
  kill(rank: number): void {
    this.trace(`rank ${rank} is killed`);
    this.processes[rank]!.die();
    this.breakLinks(rank, 'its connection closed');
  }

  /** Breaks all links of a rank, as its peers notice. */
  breakLinks(rank: number, reason: string): void {
    for (const peer of this.peers(rank)) {
      this.link(peer, rank).wire.deafen();
      this.link(rank, peer).shut();
      this.endWith(rank, peer, this.#options.random.chance(0.5), () =>
        this.lose(peer, rank, reason),
      );
    }
  }

  /** Makes the rank compute for `ms`: nothing happens in it, but heartbeats go on. */
  occupy(rank: number, ms: number): void {
    this.trace(`rank ${rank} is busy for ${ms} ms`);
    this.processes[rank]!.pause();
    this.#options.time.after(ms, () => this.processes[rank]!.resume());
  }

  /** Stops the rank's process, heartbeats included; it goes on after `ms`, or never. */
  stop(rank: number, ms: number): void {
    this.trace(`rank ${rank} is stopped for ${ms} ms`);
    let isStopped = true;
    this.processes[rank]!.pause();
    for (const peer of this.peers(rank)) {
      this.#noticeSilence(peer, rank, () => isStopped);
    }
    if (ms !== Infinity) {
      this.#options.time.after(ms, () => {
        isStopped = false;
        this.trace(`rank ${rank} goes on`);
        this.processes[rank]!.resume();
      });
    }
  }

  /** Delivers nothing between the two ranks; the link works again after `ms`, or never. */
  cut(a: number, b: number, ms: number): void {
    this.trace(`link ${a}-${b} is cut for ${ms} ms`);
    const links = [this.link(a, b), this.link(b, a)];
    for (const link of links) {
      link.wire.hold();
    }
    let isCut = true;
    this.#noticeSilence(a, b, () => isCut);
    this.#noticeSilence(b, a, () => isCut);
    if (ms !== Infinity) {
      this.#options.time.after(ms, () => {
        isCut = false;
        this.trace(`link ${a}-${b} heals`);
        for (const link of links) {
          link.wire.release();
        }
      });
    }
  }

  /** Breaks the connection, which both ends notice. */
  reset(a: number, b: number): void {
    this.trace(`link ${a}-${b} is reset`);
    for (const [end, other] of [
      [a, b],
      [b, a],
    ] as const) {
      this.link(end, other).wire.sever();
      this.endWith(end, other, false, () => this.lose(other, end, 'its connection was reset'));
    }
  }

  /** Sends an ending from one rank to the other. */
  endWith(from: number, to: number, isAfterPayload: boolean, action: () => void): void {
    this.link(from, to).wire.end(isAfterPayload, action);
  }

  /** Tells rank `at` that its peer has left in peace. */
  leave(at: number, peer: number): void {
    this.trace(`rank ${at} hears that ${peer} left`);
    this.link(peer, at).wire.deafen();
    this.link(at, peer).shut();
    this.listener(at).onPeerLeft(peer);
  }

  #noticeSilence(at: number, peer: number, isSilent: () => boolean): void {
    const { time, random } = this.#options;
    time.after(SILENCE_MS + random.between(0, HEARTBEAT_MS), () =>
      this.processes[at]!.do(() => {
        if (isSilent()) {
          this.lose(at, peer, `silent for ${SILENCE_MS} ms`);
        }
      }),
    );
  }

  /** Tells rank `at` that its peer is gone. */
  lose(at: number, peer: number, reason: string): void {
    if (this.link(peer, at).wire.isOver) {
      return;
    }
    this.trace(`rank ${at} loses ${peer}: ${reason}`);
    this.link(peer, at).wire.deafen();
    // A transport may do these two in either order.
    if (this.#options.random.chance(0.5)) {
      this.link(at, peer).shut();
      this.listener(at).onPeerLost(peer, reason);
    } else {
      this.listener(at).onPeerLost(peer, reason);
      this.link(at, peer).shut();
    }
  }

  #onMessage(from: number, to: number, header: MessageHeader) {
    if (this.#options.trace !== undefined) {
      const what = describeCall(header.call, header.sequence);
      const phase = header.phase === 0 ? '' : ` phase ${header.phase}`;
      this.trace(`${from} -> ${to}: ${header.group} ${what}${phase}, ${header.byteLength} bytes`);
    }
    return this.listener(to).onMessage(from, header);
  }
}

function ranks(worldSize: number): number[] {
  return Array.from({ length: worldSize }, (_, rank) => rank);
}
