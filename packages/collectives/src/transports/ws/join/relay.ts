// Joins ranks that can't listen, such as two pages: each opens a connection to the rendezvous'
// process, which passes on what either sends, without reading it. The two have proved the secret to
// the relay, and the relay to them.

import { type Clock, every, systemClock } from '../../../clock.js';
import type { Hello } from '../../../sockets/handshake.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';

/**
 * The most bytes that are held for a slow reader in one direction; above that its sender is not
 * read for a while.
 */
const MAX_HELD_BYTES = 4 * 2 ** 20;

/**
 * A rank that leaves more than this unread is not one of ours: texts are short, and held payload is
 * bounded above.
 */
const MAX_UNSENT_BYTES = 2 * MAX_HELD_BYTES;

/**
 * Whether a close may carry the code. Other codes, such as 1006 for a connection without a close
 * frame, become 4002, which stands for a link that broke behind the relay.
 */
const isSendable = (code: number) => code === 1000 || (code >= 4000 && code <= 4999);
const BROKEN_CODE = 4002;

/**
 * The relay's own sign of life where heartbeats pass, which are empty messages. A rank that hears
 * neither these nor its peer knows that the relay is gone.
 */
const SIGN = Uint8Array.of(1);
const SIGN_MS = 250;

/** A peer that leaves this many bytes unread is sent no further sign. */
const MAX_UNREAD_BYTES = 1024;

export class Relay {
  /** The sockets of each pair of ranks, by rank, under names such as 'relay 1 3'. */
  readonly #pairs = new Map<string, Map<number, WireSocket>>();
  #isForming = true;
  /** The sockets over which the relay sends its signs, for as long as both ends live. */
  readonly #signed = new Set<WireSocket>();
  readonly #clock: Clock;
  #stopSigns: (() => void) | undefined;

  /** @param formed settles when the job has formed, or won't */
  constructor(formed: Promise<void>, clock: Clock = systemClock) {
    this.#clock = clock;
    const close = () => this.close();
    formed.then(close, close);
  }

  /** The reason why a rank is turned away; undefined where it is not. */
  refusalOf({ rank, target, worldSize }: Hello): string | undefined {
    if (target === rank || target >= worldSize) {
      return `no relay to rank ${target}`;
    }
    return this.#isForming ? undefined : 'the job has formed';
  }

  /**
   * Takes an authenticated socket of role 'relay' or 'heartbeat relay', in place of an older one of
   * the same rank. The rank at the other end keeps its socket, and notices nothing.
   */
  onPeer(hello: Hello, socket: WireSocket): void {
    const key = keyOf(hello);
    const pair = this.#pairs.get(key) ?? new Map<number, WireSocket>();
    this.#pairs.set(key, pair);
    const older = pair.get(hello.rank);
    pair.set(hello.rank, socket);
    if (older !== undefined) {
      older.setHandler(undefined);
      older.terminate();
      this.#endSigns([older]);
    }
    if (pair.size === 1) {
      // A rank that joins should send nothing yet; whatever it does send stays in the buffers of
      // the system.
      socket.setReads?.(false);
      return;
    }
    const signed = hello.role === 'heartbeat relay' ? [...pair.values()] : [];
    const onEnd = (from: WireSocket) => {
      this.#endSigns(signed);
      return !this.#isForming || this.#waitsAgain(pair, from);
    };
    const [a, b] = [...pair.values()] as [WireSocket, WireSocket];
    a.setReads?.(true);
    b.setReads?.(true);
    passOn(a, b, onEnd);
    passOn(b, a, onEnd);
    this.#signTo(signed);
  }

  /** Drops the sockets that wait in vain; joined links live on. */
  close(): void {
    this.#isForming = false;
    for (const pair of this.#pairs.values()) {
      if (pair.size === 1) {
        [...pair.values()][0]!.terminate();
      }
    }
    this.#pairs.clear();
  }

  /**
   * Takes a socket that has ended out of its pair, whose other rank then waits for a new one.
   * False, because the end is not passed on.
   */
  #waitsAgain(pair: Map<number, WireSocket>, ended: WireSocket): boolean {
    for (const [rank, socket] of pair) {
      if (socket === ended) {
        pair.delete(rank);
        for (const other of pair.values()) {
          other.setHandler(undefined);
          other.setReads?.(false);
        }
      }
    }
    return false;
  }

  #signTo(sockets: readonly WireSocket[]): void {
    if (sockets.length === 0) {
      return;
    }
    for (const socket of sockets) {
      this.#signed.add(socket);
      socket.send(SIGN); // at once, because a relay may be stopped before its first turn
    }
    this.#stopSigns ??= every(this.#clock, SIGN_MS, () => {
      for (const socket of this.#signed) {
        if (socket.unsentBytes < MAX_UNREAD_BYTES) {
          socket.send(SIGN);
        }
      }
    });
  }

  #endSigns(sockets: readonly WireSocket[]): void {
    for (const socket of sockets) {
      this.#signed.delete(socket);
    }
    if (this.#signed.size === 0) {
      this.#stopSigns?.();
      this.#stopSigns = undefined;
    }
  }
}

export function isRelayed({ role }: Hello): boolean {
  return role === 'relay' || role === 'heartbeat relay';
}

function keyOf({ role, rank, target }: Hello): string {
  return `${role} ${Math.min(rank, target)} ${Math.max(rank, target)}`;
}

/**
 * Passes on what comes. `onEnd` is called when `from` has ended, and tells whether `to` ends with
 * it.
 */
function passOn(from: WireSocket, to: WireSocket, onEnd: (from: WireSocket) => boolean): void {
  let heldBytes = 0;
  from.setHandler({
    onBinary: (bytes) => {
      const { length } = bytes;
      heldBytes += length;
      if (heldBytes > MAX_HELD_BYTES) {
        from.setReads?.(false);
      }
      to.send(bytes.slice(), () => {
        heldBytes -= length;
        if (heldBytes <= MAX_HELD_BYTES / 2) {
          from.setReads?.(true);
        }
      });
    },
    onText: (text) => {
      to.sendText(text);
      if (to.unsentBytes > MAX_UNSENT_BYTES) {
        to.close(BROKEN_CODE, 'its peer said more than can be passed on');
        from.terminate();
      }
    },
    onClose: (code, reason) => {
      if (!onEnd(from)) {
        return;
      }
      if (isSendable(code)) {
        to.close(code, reason);
      } else {
        to.close(BROKEN_CODE, reason || `the peer's connection closed, code ${code}`);
      }
    },
  });
}
