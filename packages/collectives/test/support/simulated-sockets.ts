// Sockets between simulated processes, on virtual time. Each process has a host of its own; what it
// sends arrives in order, after delays that are drawn for each connection. What two hosts send each
// other while the path between them is cut waits until that heals, as TCP sends again.

import type { SeededRandom } from '@shardweave/collectives/testing';
import { authenticateJoiner, REFUSED_CODE } from '../../src/sockets/authenticate.js';
import { HandlerSlot } from '../../src/sockets/handler-slot.js';
import {
  type ListenOptions,
  OpenError,
  type OpenedSocket,
  type SocketListener,
  type SocketPlatform,
} from '../../src/sockets/socket-platform.js';
import type { WireHandler, WireSocket } from '../../src/sockets/wire-socket.js';
import {
  type LinkConditions,
  randomConditions,
} from '../../src/testing/simulator/link-conditions.js';
import { SimulatedProcess } from '../../src/testing/simulator/simulated-process.js';
import type { VirtualTime } from '../../src/testing/simulator/virtual-time.js';

/** The time that a listener has for a proof, and a peer for the end of a closing handshake. */
const PROOF_MS = 1000;
const CLOSE_MS = 1000;

const CALM_DELAY_MS = 20;

/** The close code of a connection without a close frame. */
const CUT_CODE = 1006;

/** All hosts, and the paths between them. */
export class SimulatedNet {
  readonly time: VirtualTime;
  readonly random: SeededRandom;
  readonly secret: string;
  maxDelayMs = Infinity;
  readonly #scaleMs: number;
  readonly #hosts = new Map<string, SimulatedSockets>();
  readonly #cut = new Set<string>();
  readonly #held: (() => void)[] = [];

  constructor(time: VirtualTime, random: SeededRandom, secret: string) {
    this.time = time;
    this.random = random;
    this.secret = secret;
    this.#scaleMs = random.pick([0, 0.1, 1, 20]);
  }

  /** Starts a process, perhaps at the address of one that is dead. */
  start(host: string): SimulatedSockets {
    const sockets = new SimulatedSockets(host, this);
    this.#hosts.set(host, sockets);
    return sockets;
  }

  at(host: string): SimulatedSockets | undefined {
    return this.#hosts.get(host);
  }

  isCut(a: string, b: string): boolean {
    return this.#cut.has(pairOf(a, b));
  }

  cut(a: string, b: string): void {
    this.#cut.add(pairOf(a, b));
  }

  /** Mends all paths. */
  heal(): void {
    this.#cut.clear();
    for (const arrive of this.#held.splice(0)) {
      arrive();
    }
  }

  /** Makes all ways fast from now on, so that whatever is late is late for another reason. */
  calm(): void {
    this.maxDelayMs = CALM_DELAY_MS;
  }

  /** Keeps what can't arrive until paths heal. */
  hold(arrive: () => void): void {
    this.#held.push(arrive);
  }

  way(from: string, to: string): Way {
    return new Way(this, [from, to], randomConditions(this.random.fork(), this.#scaleMs));
  }
}

function pairOf(a: string, b: string): string {
  return a < b ? `${a} ${b}` : `${b} ${a}`;
}

/** One direction of a connection. */
class Way {
  readonly #net: SimulatedNet;
  readonly #ends: readonly [string, string];
  readonly #conditions: LinkConditions;
  #lastMs = 0;
  #numDropped = 0;
  #numSent = 0;

  constructor(net: SimulatedNet, ends: readonly [string, string], conditions: LinkConditions) {
    this.#net = net;
    this.#ends = ends;
    this.#conditions = conditions;
  }

  send(arrive: () => void): void {
    const { time, maxDelayMs } = this.#net;
    const number = this.#numSent++;
    const act = () => {
      if (number >= this.#numDropped) {
        arrive();
      }
    };
    const delayMs = Math.min(this.#conditions.delayMs(), maxDelayMs);
    this.#lastMs = Math.max(this.#lastMs, time.nowMs + delayMs);
    time.at(this.#lastMs, () => {
      if (this.#net.isCut(...this.#ends)) {
        this.#net.hold(act);
      } else {
        act();
      }
    });
  }

  /** Loses what is on its way. */
  drop(): void {
    this.#numDropped = this.#numSent;
  }
}

/** A process, with its address and its sockets. */
export class SimulatedSockets implements SocketPlatform {
  readonly maxRetryMs = 200;
  readonly host: string;
  readonly process: SimulatedProcess;
  readonly #net: SimulatedNet;
  readonly #listeners = new Map<number, ListenOptions>();
  readonly #sockets = new Set<SimulatedSocket>();

  constructor(host: string, net: SimulatedNet) {
    this.host = host;
    this.#net = net;
    this.process = new SimulatedProcess(net.time, net.random.fork());
  }

  async listen(options: ListenOptions): Promise<SocketListener> {
    const port = options.port || 1000 + this.#listeners.size;
    this.#listeners.set(port, options);
    return { port, close: () => this.#listeners.delete(port) };
  }

  open(url: string, limitMs = PROOF_MS): Promise<OpenedSocket> {
    const { hostname, port } = new URL(url);
    const there = this.#net.way(this.host, hostname);
    const back = this.#net.way(hostname, this.host);
    const socket = new SimulatedSocket(this.process, there);
    return new Promise((resolve, reject) => {
      const fail = (reason: string) => {
        stopTimer();
        reject(new OpenError(reason, { isEarly: true }));
      };
      const stopTimer = this.process.setTimer(limitMs, () => {
        socket.terminate();
        fail('no answer');
      });
      const refuse = () => back.send(() => this.process.do(() => fail('ECONNREFUSED')));
      there.send(() => {
        const peer = this.#net.at(hostname);
        if (peer === undefined || peer.process.isDead) {
          refuse();
          return;
        }
        peer.process.do(() => {
          const listening = peer.#listeners.get(Number(port));
          if (listening === undefined) {
            refuse();
            return;
          }
          const accepted = new SimulatedSocket(peer.process, back);
          socket.peer = accepted;
          accepted.peer = socket;
          this.#sockets.add(socket);
          peer.#sockets.add(accepted);
          back.send(() =>
            this.process.do(() => {
              stopTimer();
              resolve({ socket, localHost: this.host });
            }),
          );
          void peer.#accept(listening, accepted, this.host);
        });
      });
    });
  }

  /** Ends the process. Its system ends its connections, and may lose what they have sent. */
  kill(): void {
    this.process.die();
    for (const socket of this.#sockets) {
      socket.die(this.#net.random.chance(0.5));
    }
  }

  async #accept(
    { refusalOf, onPeer }: ListenOptions,
    socket: SimulatedSocket,
    from: string,
  ): Promise<void> {
    const options = {
      secret: this.#net.secret,
      proofMs: PROOF_MS,
      clock: this.process,
      refusalOf,
    };
    try {
      onPeer(await authenticateJoiner(socket, options), socket, from);
    } catch (error) {
      socket.close(REFUSED_CODE, (error as Error).message);
    }
  }
}

class SimulatedSocket implements WireSocket {
  readonly unsentBytes = 0;
  /** The other end, once it has accepted. */
  peer: SimulatedSocket | undefined;
  readonly #process: SimulatedProcess;
  readonly #way: Way;
  readonly #slot = new HandlerSlot();
  /** Whether nothing more goes out. */
  #isShut = false;
  #hasEnded = false;

  constructor(process: SimulatedProcess, way: Way) {
    this.#process = process;
    this.#way = way;
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  setHandler(handler: WireHandler | undefined): void {
    this.#slot.setHandler(handler);
  }

  trust(): void {}

  send(bytes: Uint8Array, written?: () => void): void {
    const copy = bytes.slice();
    this.#pass((peer) => peer.#slot.onBinary(copy));
    if (written !== undefined) {
      this.#process.setTimer(0, written);
    }
  }

  sendText(text: string): void {
    this.#pass((peer) => peer.#slot.onText(text));
  }

  batch(body: () => void): void {
    body();
  }

  close(code: number, reason: string): void {
    if (!this.#isShut) {
      this.#pass((peer) => peer.#onCloseFrame(code, reason));
      this.#isShut = true;
      this.#process.setTimer(CLOSE_MS, () => this.terminate());
    }
  }

  terminate(): void {
    this.#isShut = false; // a closing handshake may be on its way
    this.#pass((peer) => peer.#end(CUT_CODE, ''));
    this.#isShut = true;
    this.#process.setTimer(0, () => this.#end(CUT_CODE, 'terminated'));
  }

  /** Its process is dead. */
  die(isLosing: boolean): void {
    if (isLosing) {
      this.#way.drop();
    }
    this.terminate();
  }

  #onCloseFrame(code: number, reason: string): void {
    this.#pass((peer) => peer.#end(code, reason));
    this.#isShut = true;
    this.#end(code, reason);
  }

  #end(code: number, reason: string): void {
    this.#isShut = true;
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      this.#slot.onClose(code, reason);
    }
  }

  /** Does something at the other end when that arrives there. */
  #pass(what: (peer: SimulatedSocket) => void): void {
    if (this.#isShut) {
      return;
    }
    this.#way.send(() => {
      const { peer } = this;
      if (peer !== undefined) {
        peer.#process.do(() => {
          if (!peer.#hasEnded) {
            what(peer);
          }
        });
      }
    });
  }
}
