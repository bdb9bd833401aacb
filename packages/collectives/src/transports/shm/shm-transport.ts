// The transport between threads that share memory: a link to each peer, a poller that moves their
// frames, and ports for what is rare (control messages, registered memory) and for noticing that a
// thread has ended.

import type { Turns } from '../../endpoint/turns.js';
import { within } from '../../time-limit.js';
import type {
  ControlMessage,
  MessageHeader,
  Transport,
  TransportListener,
} from '../../transport.js';
import { ringBell } from './doorbell.js';
import { bellOf, ringOf } from './job-memory.js';
import { Poller } from './poller.js';
import { RingReader, RingWriter } from './ring.js';
import { type BufferMessage, OwnMemory } from './shared-buffers.js';
import type { SharedHeap } from './shared-heap.js';
import type { ShmRankHandle } from './shm-job.js';
import { ShmLink } from './shm-link.js';
import { openPort, ThreadPresence } from './thread-presence.js';

/** The time that a polite ending may take before what is still queued is given up. */
const CLOSE_MS = 1000;

/** The messages that ports carry. */
type PortMessage =
  | { readonly type: 'made' } // from whoever made the job: see createShmJob
  | { readonly type: 'wake' }
  | { readonly type: 'hello' }
  | ({ readonly type: 'failed' } & JoinFailure)
  | { readonly type: 'control'; readonly message: ControlMessage }
  | BufferMessage;

/** What keeps a job from forming. */
export interface JoinFailure {
  /** The rank at which it began. */
  readonly origin: number;
  readonly reason: string;
}

export interface ShmTransportOptions {
  readonly handle: ShmRankHandle;
  readonly heap: SharedHeap | undefined;
  readonly listener: TransportListener;
  readonly turns: Turns;
  /** The milliseconds for which it looks again in every turn of the event loop before it sleeps. */
  readonly watchMs: number;
}

interface Peer {
  readonly link: ShmLink;
  readonly port: MessagePort;
}

export class ShmTransport implements Transport {
  readonly isLending = true;
  readonly #options: ShmTransportOptions;
  readonly #memory: OwnMemory;
  readonly #poller: Poller;
  readonly #peers: ReadonlyMap<number, Peer>;
  readonly #presence: ThreadPresence;
  readonly #awaited: Set<number>;
  /** Called when a rank has come, and others have not. */
  onHello: () => void = () => {};
  #endJoin: (failure: JoinFailure | undefined) => void = () => {};
  #isJoined = false;
  #isClosed = false;

  constructor(options: ShmTransportOptions) {
    const { handle, heap, watchMs } = options;
    this.#options = options;
    this.#memory = new OwnMemory(heap, (message) => this.#postAll(message));
    const bell = bellOf(handle.memory, handle.rank);
    this.#poller = new Poller(bell, watchMs, (link) => this.#onLeft(link));
    const rankOf = (i: number) => (i < handle.rank ? i : i + 1);
    this.#peers = new Map(
      handle.ports.map((port, i) => [rankOf(i), this.#peerOf(rankOf(i), port)]),
    );
    this.#presence = new ThreadPresence(handle.job, handle.rank);
    this.#awaited = new Set(this.#peers.keys());
  }

  /** The ranks of which nothing was heard yet. */
  get awaited(): readonly number[] {
    return [...this.#awaited];
  }

  /** Resolves when all other ranks are here, or with what keeps one of them from joining. */
  async join(): Promise<JoinFailure | undefined> {
    await this.#presence.hold(this.#options.handle.ports);
    const failure = await new Promise<JoinFailure | undefined>((resolve) => {
      this.#endJoin = resolve;
      for (const peer of this.#peers.values()) {
        openPort(peer.port, (data) => this.#onPort(peer, data as PortMessage));
        this.#presence.watchPort(peer.port, () => this.#onThreadEnded(peer));
        this.#post(peer, { type: 'hello' });
      }
      if (this.#awaited.size === 0) {
        resolve(undefined);
      }
    });
    if (failure === undefined) {
      this.#isJoined = true;
      this.#poller.look();
    }
    return failure;
  }

  /**
   * Ends a rank that does not join. The others, which may have joined, would otherwise blame it for
   * the end of its thread.
   */
  giveUp(failure: JoinFailure): void {
    this.#postAll({ type: 'failed', ...failure });
    this.terminate();
  }

  send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined {
    const { link } = this.#peers.get(to)!;
    if (this.#isClosed || link.isOver) {
      return undefined;
    }
    const sent = link.sends.send(header, payload, onProgress);
    this.#poller.expectAnswer();
    return sent;
  }

  sendControl(to: number, message: ControlMessage): void {
    this.#post(this.#peers.get(to)!, { type: 'control', message });
  }

  allocate(byteLength: number): Uint8Array {
    return this.#memory.allocate(byteLength);
  }

  register(buffer: SharedArrayBuffer): void {
    this.#memory.register(buffer);
  }

  release(memory: Uint8Array | ArrayBufferLike): void {
    this.#memory.release(memory);
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    if (this.#isClosed) {
      return;
    }
    if (how === 'drain') {
      const flushed = [...this.#peers.values()].map(({ link }) => link.sends.flushed());
      await within(CLOSE_MS, Promise.all(flushed), () => []);
    }
    if (this.#isClosed) {
      return;
    }
    this.#isClosed = true;
    if (how === 'drain') {
      for (const { link } of this.#peers.values()) {
        link.leave();
      }
    }
    this.#free();
  }

  terminate(): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#free();
    }
  }

  #peerOf(rank: number, port: MessagePort): Peer {
    const { handle, listener, turns } = this.#options;
    const { memory, worldSize, ringBytes, rank: own } = handle;
    const bell = bellOf(memory, rank);
    const postWake = () => this.#post(peer, { type: 'wake' });
    const ring = (from: number, to: number) => ringOf(memory, worldSize, ringBytes, { from, to });
    const link: ShmLink = new ShmLink({
      peer: rank,
      writer: new RingWriter(ring(own, rank)),
      reader: new RingReader(ring(rank, own)),
      listener,
      memory: this.#memory,
      turns,
      poller: this.#poller,
      wake: () => ringBell(bell, postWake),
    });
    this.#poller.add(link);
    const peer = { link, port };
    return peer;
  }

  #onPort(peer: Peer, message: PortMessage): void {
    if (this.#isClosed) {
      return;
    }
    const { link } = peer;
    switch (message.type) {
      case 'made':
        return;
      case 'wake':
        this.#poller.wake();
        return;
      case 'hello':
        this.#presence.watchLock(link.peer, peer.port, () => this.#onThreadEnded(peer));
        this.#awaited.delete(link.peer);
        if (this.#awaited.size === 0) {
          this.#endJoin(undefined);
        } else {
          this.onHello();
        }
        return;
      case 'failed':
        this.#onTold(link.peer, message);
        return;
      case 'control':
        this.#options.listener.onControl(link.peer, message.message);
        return;
      case 'buffer':
        link.buffers.add(message.id, message.buffer);
        return;
      case 'forget':
        link.buffers.remove(message.id);
        return;
    }
  }

  /** Takes the word of a rank that does not join. */
  #onTold(from: number, { origin, reason }: JoinFailure): void {
    if (this.#isJoined) {
      const failure = { kind: 'peer-lost', origin, reason } as const;
      this.#options.listener.onControl(from, { type: 'failure', failure });
    } else {
      this.#endJoin({ origin, reason: `${reason} (told by rank ${from})` });
    }
  }

  #onLeft(link: ShmLink): void {
    link.drop();
    this.#options.listener.onPeerLeft(link.peer);
  }

  /**
   * Called when a peer's thread has ended, or has let go of the job. What it wrote before still
   * counts.
   */
  #onThreadEnded({ link }: Peer): void {
    const { peer } = link;
    if (!this.#isJoined) {
      const reason = `the thread of rank ${peer} ended before all ranks had joined`;
      this.#endJoin({ origin: peer, reason });
      return;
    }
    while (!link.isOver && link.receive()) {
      // The ring is read to its end.
    }
    if (link.isOver) {
      return;
    }
    if (link.hasPeerLeft) {
      this.#onLeft(link);
    } else {
      link.drop();
      this.#options.listener.onPeerLost(peer, 'its thread ended');
    }
  }

  #post({ link, port }: Peer, message: PortMessage): void {
    if (!this.#isClosed && !link.isOver) {
      port.postMessage(message);
    }
  }

  #postAll(message: PortMessage): void {
    for (const peer of this.#peers.values()) {
      this.#post(peer, message);
    }
  }

  #free(): void {
    this.#poller.stop();
    for (const { link, port } of this.#peers.values()) {
      link.drop();
      port.close();
    }
    this.#memory.clear();
    this.#presence.release();
  }
}
