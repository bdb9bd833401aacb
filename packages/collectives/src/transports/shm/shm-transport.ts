// The transport between threads that share memory: a link to each peer, one loop that looks at all
// of them when a peer has rung, and ports for what is rare (control messages, registered memory)
// and for noticing that a thread has ended.

import { yieldToEventLoop } from '@shardweave/dtypes';
import type { Turns } from '../../endpoint/turns.js';
import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from '../../transport.js';
import { Doorbell, ringBell } from './doorbell.js';
import { bellOf, ringOf } from './job-memory.js';
import { HEAP_ID } from './lent-reader.js';
import { RingReader, RingWriter } from './ring.js';
import { OwnBuffers } from './shared-buffers.js';
import type { SharedHeap } from './shared-heap.js';
import type { ShmRankHandle } from './shm-job.js';
import { type LinkHost, ShmLink } from './shm-link.js';
import { openPort, ThreadPresence } from './thread-presence.js';

/** The time that a polite ending may take before what is still queued is given up. */
const CLOSE_MS = 1000;

/**
 * The milliseconds of moving frames in one callback. The limit of a turn is 20 ms, and other work
 * needs its share of that.
 */
const LOOK_MS = 4;

/** The messages that ports carry. */
type PortMessage =
  | { readonly type: 'made' } // from whoever made the job: see createShmJob
  | { readonly type: 'wake' }
  | { readonly type: 'hello' }
  | ({ readonly type: 'failed' } & JoinFailure)
  | { readonly type: 'control'; readonly message: ControlMessage }
  | { readonly type: 'buffer'; readonly id: number; readonly buffer: SharedArrayBuffer }
  | { readonly type: 'forget'; readonly id: number };

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
  readonly rank: number;
  readonly link: ShmLink;
  readonly port: MessagePort;
  readonly bell: Int32Array;
  /** Whether it said goodbye or ended, so that nothing of it counts any more. */
  isGone: boolean;
}

export class ShmTransport implements Transport, LinkHost {
  readonly isLending = true;
  readonly turns: Turns;
  readonly heap: SharedHeap | undefined;
  readonly #options: ShmTransportOptions;
  readonly #peers: Peer[];
  readonly #byRank = new Map<number, Peer>();
  readonly #own = new OwnBuffers();
  readonly #doorbell: Doorbell;
  readonly #presence: ThreadPresence;
  readonly #awaited: Set<number>;
  #onAllHere: () => void = () => {};
  #onJoinFailed: (failure: JoinFailure) => void = () => {};
  #isJoined = false;
  #isClosed = false;
  /** Whether a look at the rings is certain to come. */
  #isLookDue = false;
  #watchUntilMs = 0;
  /** The index of the peer that is looked at next. */
  #turnOf = 0;

  constructor(options: ShmTransportOptions) {
    const { handle, heap, turns } = options;
    this.heap = heap;
    this.#options = options;
    this.turns = turns;
    this.#presence = new ThreadPresence(handle.job, handle.rank);
    this.#doorbell = new Doorbell(bellOf(handle.memory, handle.rank), () => this.#onWake());
    this.#peers = handle.ports.map((port, i) => this.#peerOf(i < handle.rank ? i : i + 1, port));
    this.#awaited = new Set(this.#peers.map(({ rank }) => rank));
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** The ranks of which nothing was heard yet. */
  get awaited(): readonly number[] {
    return [...this.#awaited];
  }

  /** Resolves when all other ranks are here, or with what keeps one of them from joining. */
  async join(): Promise<JoinFailure | undefined> {
    await this.#presence.hold(this.#options.handle.ports);
    const failure = await new Promise<JoinFailure | undefined>((resolve) => {
      this.#onAllHere = () => resolve(undefined);
      this.#onJoinFailed = resolve;
      for (const peer of this.#peers) {
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
      this.#look();
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
    const peer = this.#byRank.get(to)!;
    if (this.#isClosed || peer.isGone) {
      return undefined;
    }
    const sent = peer.link.send(header, payload, onProgress);
    if (this.#options.watchMs > 0) {
      this.lookSoon(); // an answer is likely
    }
    return sent;
  }

  sendControl(to: number, message: ControlMessage): void {
    this.#post(this.#byRank.get(to)!, { type: 'control', message });
  }

  allocate(byteLength: number): Uint8Array {
    const bytes = this.heap?.allocate(byteLength);
    if (bytes !== undefined) {
      return bytes;
    }
    const buffer = new SharedArrayBuffer(byteLength);
    this.register(buffer);
    return new Uint8Array(buffer);
  }

  register(buffer: SharedArrayBuffer): void {
    const id = this.#own.add(buffer);
    if (id !== undefined) {
      this.#postAll({ type: 'buffer', id, buffer });
    }
  }

  release(memory: Uint8Array | ArrayBufferLike): void {
    const isView = ArrayBuffer.isView(memory);
    if (isView && this.heap?.release(memory)) {
      return;
    }
    const id = this.#own.remove(isView ? memory.buffer : memory);
    if (id !== undefined) {
      this.#postAll({ type: 'forget', id });
    }
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    if (this.#isClosed) {
      return;
    }
    if (how === 'drain') {
      await this.#flush();
    }
    if (this.#isClosed) {
      return;
    }
    this.#isClosed = true;
    if (how === 'drain') {
      for (const { link } of this.#peers) {
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

  // ------------------------------------------------------------------ LinkHost

  bufferIdOf(buffer: ArrayBufferLike): number | undefined {
    return this.heap?.holds(buffer) ? HEAP_ID : this.#own.idOf(buffer);
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    return this.#options.listener.onMessage(from, header);
  }

  lookSoon(): void {
    this.#watchUntilMs = performance.now() + this.#options.watchMs;
    if (!this.#isLookDue && !this.#isClosed) {
      this.#doorbell.rise();
      this.#lookNextTurn();
    }
  }

  wake(rank: number): void {
    const peer = this.#byRank.get(rank)!;
    ringBell(peer.bell, () => this.#post(peer, { type: 'wake' }));
  }

  // -------------------------------------------------------------- the rings

  /** Called when another rank has rung, or may have. */
  #onWake(): void {
    if (!this.#isLookDue && !this.#isClosed) {
      this.#look();
    }
  }

  /** Looks at the rings in the next turn of the event loop, whether woken or not. */
  #lookNextTurn(): void {
    this.#isLookDue = true;
    const look = () => {
      this.#isLookDue = false;
      this.#look();
    };
    if (typeof setImmediate === 'function') {
      setImmediate(look);
    } else {
      void yieldToEventLoop().then(look);
    }
  }

  /**
   * Reads and writes while there is something to move; then it watches for a while; then it sleeps.
   */
  #look(): void {
    const endMs = performance.now() + LOOK_MS;
    while (!this.#isClosed) {
      this.#doorbell.rise();
      if (this.#moveSome(endMs)) {
        const nowMs = performance.now();
        this.#watchUntilMs = nowMs + this.#options.watchMs;
        if (nowMs > endMs) {
          this.#lookNextTurn();
          return;
        }
      } else if (performance.now() < this.#watchUntilMs) {
        this.#lookNextTurn();
        return;
      } else {
        this.#doorbell.closeEyes();
        if (!this.#hasNews()) {
          this.#doorbell.sleep();
          return;
        }
      }
    }
  }

  /**
   * Moves some frames of each link, in both directions, until `endMs`. False where there were none.
   */
  #moveSome(endMs: number): boolean {
    let hasMoved = false;
    for (let i = 0; i < this.#peers.length && !this.#isClosed; i++) {
      const peer = this.#peers[this.#turnOf]!;
      this.#turnOf = (this.#turnOf + 1) % this.#peers.length;
      if (peer.isGone) {
        continue;
      }
      const hasRead = peer.link.receive();
      const hasWritten = peer.link.hasRoom && peer.link.pump();
      if (peer.link.hasPeerLeft) {
        this.#onLeft(peer);
      }
      if (hasRead || hasWritten) {
        hasMoved = true;
        if (performance.now() > endMs) {
          break; // the next one comes first the next time
        }
      }
    }
    return hasMoved;
  }

  #hasNews(): boolean {
    return this.#peers.some(
      ({ link, isGone }) => !isGone && (link.hasNews || link.hasPeerLeft || link.hasRoom),
    );
  }

  // -------------------------------------------------------------------- peers

  #peerOf(rank: number, port: MessagePort): Peer {
    const { memory, worldSize, ringBytes, rank: own } = this.#options.handle;
    const ring = (from: number, to: number) => ringOf(memory, worldSize, ringBytes, { from, to });
    const writer = new RingWriter(ring(own, rank));
    const reader = new RingReader(ring(rank, own));
    const link = new ShmLink(rank, this, writer, reader);
    const peer = { rank, link, port, bell: bellOf(memory, rank), isGone: false };
    this.#byRank.set(rank, peer);
    return peer;
  }

  #onPort(peer: Peer, message: PortMessage): void {
    if (this.#isClosed) {
      return;
    }
    switch (message.type) {
      case 'made':
        return;
      case 'wake':
        this.#onWake();
        return;
      case 'hello':
        this.#presence.watchLock(peer.rank, peer.port, () => this.#onThreadEnded(peer));
        this.#awaited.delete(peer.rank);
        if (this.#awaited.size === 0) {
          this.#onAllHere();
        }
        return;
      case 'failed':
        this.#onTold(peer.rank, message);
        return;
      case 'control':
        this.#options.listener.onControl(peer.rank, message.message);
        return;
      case 'buffer':
        peer.link.buffers.add(message.id, message.buffer);
        return;
      case 'forget':
        peer.link.buffers.remove(message.id);
        return;
    }
  }

  /** Takes the word of a rank that does not join. */
  #onTold(from: number, { origin, reason }: JoinFailure): void {
    if (this.#isJoined) {
      const failure = { kind: 'peer-lost', origin, reason } as const;
      this.#options.listener.onControl(from, { type: 'failure', failure });
    } else {
      this.#onJoinFailed({ origin, reason: `${reason} (told by rank ${from})` });
    }
  }

  #onLeft(peer: Peer): void {
    peer.isGone = true;
    peer.link.drop();
    this.#options.listener.onPeerLeft(peer.rank);
  }

  /**
   * Called when a peer's thread has ended, or has let go of the job. What it wrote before still
   * counts.
   */
  #onThreadEnded(peer: Peer): void {
    if (!this.#isJoined) {
      const reason = `the thread of rank ${peer.rank} ended before all ranks had joined`;
      this.#onJoinFailed({ origin: peer.rank, reason });
      return;
    }
    while (!this.#isClosed && !peer.isGone && peer.link.receive()) {
      // The ring is read to its end.
    }
    if (this.#isClosed || peer.isGone) {
      return;
    }
    if (peer.link.hasPeerLeft) {
      this.#onLeft(peer);
    } else {
      peer.isGone = true;
      peer.link.drop();
      this.#options.listener.onPeerLost(peer.rank, 'its thread ended');
    }
  }

  #post(peer: Peer, message: PortMessage): void {
    if (!this.#isClosed && !peer.isGone) {
      peer.port.postMessage(message);
    }
  }

  #postAll(message: PortMessage): void {
    for (const peer of this.#peers) {
      this.#post(peer, message);
    }
  }

  /** Resolves when the peers have everything that was sent, or it took too long. */
  async #flush(): Promise<void> {
    const flushed = this.#peers.map(({ link }) => link.flushed());
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, CLOSE_MS);
    });
    await Promise.race([Promise.all(flushed), late]);
    clearTimeout(timer);
  }

  #free(): void {
    this.#doorbell.dispose();
    for (const { link, port } of this.#peers) {
      link.drop();
      port.close();
    }
    this.#own.clear();
    this.#presence.release();
  }
}
