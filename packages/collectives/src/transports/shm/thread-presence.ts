// Notices that another rank's thread has ended, however busy both threads are. Node closes a
// thread's ports when it ends, and reports that at the other end. Browsers don't, but they free the
// Web Locks that an ended worker held.

/**
 * The milliseconds for messages that an ended thread has posted: they take well under 10, and the
 * rest is for a busy machine.
 */
const POSTED_MS = 200;

/** The methods of Node's ports that those of the DOM lack. */
interface NodePort {
  ref?(): void;
  unref?(): void;
}

/** Whether the other end of a port hears when a thread ends. */
function doPortsTell(port: MessagePort): boolean {
  return typeof (port as NodePort).unref === 'function';
}

/** Listens to a port. In Node the port alone does not keep a thread alive. */
export function openPort(port: MessagePort, onMessage: (data: unknown) => void): void {
  port.addEventListener('message', ({ data }) => onMessage(data));
  port.start();
  (port as NodePort).unref?.();
}

/** Makes an open port keep its thread alive, in Node. */
export function holdOpen(port: MessagePort): void {
  (port as NodePort).ref?.();
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

  /** Resolves when threads that watch this one would notice its end. */
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

  /** Calls `onEnd`, perhaps more than once, when the port's other thread has ended or closed it. */
  watchPort(port: MessagePort, onEnd: () => void): void {
    port.addEventListener('close', onEnd);
  }

  /**
   * Does the same by means of the peer's lock, where ports don't tell; the peer has announced that
   * it holds it.
   */
  watchLock(peer: number, port: MessagePort, onEnd: () => void): void {
    if (doPortsTell(port) || globalThis.navigator?.locks === undefined) {
      return;
    }
    const options = { mode: 'shared', signal: this.#ended.signal } as const;
    navigator.locks
      .request(this.#lockOf(peer), options, () => {
        // Messages that it posted before it ended may still be on their way.
        setTimeout(onEnd, POSTED_MS);
      })
      .catch(() => {}); // aborted
  }

  /** Releases the lock, so that threads that watch take this one for ended, and stops watching. */
  release(): void {
    this.#release?.();
    this.#ended.abort();
  }

  #lockOf(rank: number): string {
    return `shardweave-shm ${this.#job} ${rank}`;
  }
}
