// Notices that another rank's thread has ended, however busy this or that one is. Node closes a
// thread's ports with it and says so at the other end; browsers don't, but they free the Web Locks
// that an ended worker held.

/**
 * Milliseconds for messages that an ended thread has posted: they take well under 10, and a busy
 * machine gets room.
 */
const POSTED_MS = 200;

/** The part of Node's ports that the DOM's don't have. */
interface NodePort {
  unref?(): void;
}

/** Whether the end of a thread closes its ports audibly. */
function doPortsTell(port: MessagePort): boolean {
  return typeof (port as NodePort).unref === 'function';
}

/** Listens to a port. In Node the port alone keeps no thread alive. */
export function openPort(port: MessagePort, onMessage: (data: unknown) => void): void {
  port.addEventListener('message', ({ data }) => onMessage(data));
  port.start();
  (port as NodePort).unref?.();
}

export class ThreadPresence {
  readonly #job: string;
  readonly #rank: number;
  readonly #ended = new AbortController();
  #release: (() => void) | undefined;

  constructor(job: string, rank: number) {
    this.#job = job;
    this.#rank = rank;
  }

  /** Resolves when this thread's end will be noticed by those that watch it. */
  async hold(ports: readonly MessagePort[]): Promise<void> {
    if (ports.length === 0 || doPortsTell(ports[0]!) || globalThis.navigator?.locks === undefined) {
      return;
    }
    await new Promise<void>((resolve) => {
      const held = new Promise<void>((release) => {
        this.#release = release;
      });
      void navigator.locks.request(this.#lockOf(this.#rank), () => {
        resolve();
        return held;
      });
    });
  }

  /** Calls `onEnd`, perhaps more than once, when the port's other thread ended or closed it. */
  watchPort(port: MessagePort, onEnd: () => void): void {
    port.addEventListener('close', onEnd);
  }

  /**
   * Does the same by the peer's lock, where ports don't tell; the peer has said that it holds it.
   */
  watchLock(peer: number, port: MessagePort, onEnd: () => void): void {
    if (doPortsTell(port) || globalThis.navigator?.locks === undefined) {
      return;
    }
    const options = { mode: 'shared', signal: this.#ended.signal } as const;
    navigator.locks
      .request(this.#lockOf(peer), options, () => {
        // What it posted before it ended may still be on its way.
        setTimeout(onEnd, POSTED_MS);
      })
      .catch(() => {}); // aborted
  }

  /** Lets go, so that those who watch take this thread for ended, and watches no more. */
  release(): void {
    this.#release?.();
    this.#ended.abort();
  }

  #lockOf(rank: number): string {
    return `shardweave-shm ${this.#job} ${rank}`;
  }
}
