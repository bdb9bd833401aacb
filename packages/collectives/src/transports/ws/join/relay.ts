// Joins ranks that can't listen, two pages for example: each opens a connection to the rendezvous'
// process, which passes on what either says. It reads nothing of it; the two have proved the secret
// to the relay, and the relay to them.

import type { Hello } from '../../../sockets/handshake.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';

/** Held for a slow reader at most, per direction: then the sender is not read for a while. */
const MAX_HELD_BYTES = 4 * 2 ** 20;

/** Beyond, text is not what ranks say: it is short, and what is held of payload is bounded above. */
const MAX_UNSENT_BYTES = 2 * MAX_HELD_BYTES;

/** Codes that a close may carry; others (1006: no close frame) become 4002, a link that broke behind the relay. */
const isSendable = (code: number) => code === 1000 || (code >= 4000 && code <= 4999);
const BROKEN_CODE = 4002;

/**
 * What a relay says of itself where heartbeats pass, which are empty: a rank that hears neither these nor its peer
 * misses the relay.
 */
const SIGN = Uint8Array.of(1);
const SIGN_MS = 250;

/** Whoever reads nothing is sent no more. */
const MAX_UNREAD_BYTES = 1024;

export class Relay {
  /** The one that came first, by "role lower higher". */
  readonly #waiting = new Map<string, { readonly rank: number; readonly socket: WireSocket }>();
  readonly #joined = new Set<string>();
  /** Where it says that it lives, for as long as both ends do. */
  readonly #signed = new Set<WireSocket>();
  #timer: ReturnType<typeof setInterval> | undefined;

  /** Why a rank is turned away. */
  refusalOf(hello: Hello): string | undefined {
    const { rank, target, worldSize } = hello;
    if (target === rank || target >= worldSize) {
      return `no relay to rank ${target}`;
    }
    const key = keyOf(hello);
    const isHere = this.#joined.has(key) || this.#waiting.get(key)?.rank === rank;
    return isHere ? `rank ${rank} is linked to rank ${target} already` : undefined;
  }

  /** Takes a proven socket of role 'relay' or 'heartbeat relay'. */
  onPeer(hello: Hello, socket: WireSocket): void {
    if (this.refusalOf(hello) !== undefined) {
      socket.terminate(); // the same rank twice at once
      return;
    }
    const key = keyOf(hello);
    const other = this.#waiting.get(key);
    if (other === undefined) {
      this.#waiting.set(key, { rank: hello.rank, socket });
      // What it says meanwhile stays in the system's buffers and its own: a rank that joins says nothing.
      socket.setReads?.(false);
      return;
    }
    this.#waiting.delete(key);
    this.#joined.add(key);
    other.socket.setReads?.(true);
    const pair = [socket, other.socket];
    const onEnd = () => this.#endSigns(pair);
    passOn(socket, other.socket, onEnd);
    passOn(other.socket, socket, onEnd);
    if (hello.role === 'heartbeat relay') {
      this.#signTo(pair);
    }
  }

  /** Drops who waits in vain; joined links live on. */
  close(): void {
    for (const { socket } of this.#waiting.values()) {
      socket.terminate();
    }
    this.#waiting.clear();
  }

  #signTo(sockets: readonly WireSocket[]): void {
    for (const socket of sockets) {
      this.#signed.add(socket);
      socket.send(SIGN); // at once: a relay may be stopped before its first turn
    }
    this.#timer ??= setInterval(() => {
      for (const socket of this.#signed) {
        if (socket.unsentBytes < MAX_UNREAD_BYTES) {
          socket.send(SIGN);
        }
      }
    }, SIGN_MS);
  }

  #endSigns(sockets: readonly WireSocket[]): void {
    for (const socket of sockets) {
      this.#signed.delete(socket);
    }
    if (this.#signed.size === 0) {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
  }
}

export function isRelayed({ role }: Hello): boolean {
  return role === 'relay' || role === 'heartbeat relay';
}

function keyOf({ role, rank, target }: Hello): string {
  return `${role} ${Math.min(rank, target)} ${Math.max(rank, target)}`;
}

function passOn(from: WireSocket, to: WireSocket, onEnd: () => void): void {
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
      onEnd();
      if (isSendable(code)) {
        to.close(code, reason);
      } else {
        to.close(BROKEN_CODE, reason || `the peer's connection closed, code ${code}`);
      }
    },
  });
}
