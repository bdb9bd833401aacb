// Joins ranks that can't listen, such as two pages: each opens a connection to the rendezvous'
// process, which passes on what either sends, without reading it. The two have proved the secret to
// the relay, and the relay to them.

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
  /** The sockets that came first, each by its role and both ranks: 'relay 1 3'. */
  readonly #waiting = new Map<string, { readonly rank: number; readonly socket: WireSocket }>();
  readonly #joined = new Set<string>();
  /** The sockets over which the relay sends its signs, for as long as both ends live. */
  readonly #signed = new Set<WireSocket>();
  #timer: ReturnType<typeof setInterval> | undefined;

  /** The reason why a rank is turned away; undefined where it is not. */
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
      // A rank that joins should send nothing yet; whatever it does send stays in the buffers of
      // the system.
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

  /** Drops the sockets that wait in vain; joined links live on. */
  close(): void {
    for (const { socket } of this.#waiting.values()) {
      socket.terminate();
    }
    this.#waiting.clear();
  }

  #signTo(sockets: readonly WireSocket[]): void {
    for (const socket of sockets) {
      this.#signed.add(socket);
      socket.send(SIGN); // at once, because a relay may be stopped before its first turn
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
