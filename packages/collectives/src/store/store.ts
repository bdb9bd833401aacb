// The client of a key-value store: one connection, over which calls are sent in order and answered
// as soon as possible. It keeps the process alive only while a call waits for its answer.

import { StoreError } from '../errors.js';
import type { WireSocket } from '../sockets/wire-socket.js';
import {
  encodeMessage,
  MessageReader,
  STALE_CODE,
  type StoreReply,
  type StoreRequest,
} from './store-messages.js';

/** The options of the calls of a Store that wait for other clients. */
export interface StoreWaitOptions {
  /** The milliseconds until the call rejects with STORE_TIMEOUT. Default: the store's. */
  readonly timeoutMs?: number;
}

/**
 * The outcome of `Store.compareSet`: whether the value was set, and the value that the key has
 * after the call.
 */
export interface CompareSetResult {
  readonly isSet: boolean;
  /** The value that the key has; undefined where there is no such key. */
  readonly value: Uint8Array | undefined;
}

export interface StoreClientOptions {
  readonly timeoutMs: number;
  readonly silenceMs: number;
  /** Called when the store has been closed. */
  onClosed?(): Promise<void>;
}

/** Distributes over the operations, so that each keeps its own fields. */
type WithoutId<Request> = Request extends unknown ? Omit<Request, 'id'> : never;

interface PendingCall {
  resolve(answer: { readonly reply: StoreReply; readonly values: readonly Uint8Array[] }): void;
  reject(error: StoreError): void;
}

/** The longest answer: it has one value, which may be as large as the server's limit. */
const MAX_ANSWER_BYTES = 0xffffffff;

/**
 * The number of signs of life that are asked for in the time after which a silent server counts as
 * lost.
 */
const TICKS = 4;

/**
 * Keys and values that all clients of one run and attempt share, as PyTorch's TCPStore does. Calls
 * of one client take effect in the order in which they were made. Every call may reject with
 * StoreError; after STORE_LOST or STORE_STALE all of them do.
 */
export class Store implements AsyncDisposable {
  readonly #socket: WireSocket;
  readonly #options: StoreClientOptions;
  readonly #calls = new Map<number, PendingCall>();
  readonly #reader = new MessageReader(MAX_ANSWER_BYTES);
  readonly #closed: Promise<void>;
  #nextId = 0;
  #end: StoreError | undefined;
  #timer: ReturnType<typeof setInterval> | undefined;
  #silentTicks = 0;

  private constructor(socket: WireSocket, options: StoreClientOptions) {
    this.#socket = socket;
    this.#options = options;
    let onClosed = () => {};
    this.#closed = new Promise((resolve) => {
      onClosed = resolve;
    });
    socket.setHandler({
      onBinary: (piece) => this.#onPiece(piece),
      onText: () => this.#lose('the server speaks another protocol'),
      onClose: (code, reason) => {
        this.#fail(
          code === STALE_CODE
            ? new StoreError('STORE_STALE', reason)
            : lost(reason || `the connection closed, code ${code}`),
        );
        onClosed();
      },
    });
  }

  /** Takes a socket over which both sides have proved themselves. Users call connectStore. */
  static async open(
    socket: WireSocket,
    { runId, ...options }: StoreClientOptions & { readonly runId: string },
  ): Promise<Store> {
    const store = new Store(socket, options);
    try {
      await store.#call({ op: 'open', runId });
      return store;
    } catch (error) {
      await store.close();
      throw error;
    }
  }

  async set(key: string, value: Uint8Array | string): Promise<void> {
    await this.#call({ op: 'set', key }, [bytesOf(key, value)]);
  }

  /** Resolves with the value once some client has set it. */
  async get(key: string, options?: StoreWaitOptions): Promise<Uint8Array> {
    const { values } = await this.#call({ op: 'get', key, timeoutMs: this.#timeout(options) });
    return values[0]!;
  }

  /** Resolves with the value as text. */
  async getText(key: string, options?: StoreWaitOptions): Promise<string> {
    return new TextDecoder().decode(await this.get(key, options));
  }

  /**
   * Adds an integer to a key's value in decimal digits, or to 0 where the key is missing, and
   * resolves with the sum.
   */
  async add(key: string, amount: number): Promise<number> {
    const { reply } = await this.#call({ op: 'add', key, amount });
    return reply.result as number;
  }

  /** Sets `desired` if the value is `expected`, where undefined stands for no value. */
  async compareSet(
    key: string,
    expected: Uint8Array | string | undefined,
    desired: Uint8Array | string,
  ): Promise<CompareSetResult> {
    const values = [desired, ...(expected === undefined ? [] : [expected])].map((value) =>
      bytesOf(key, value),
    );
    const answer = await this.#call({ op: 'compareSet', key }, values);
    return { isSet: answer.reply.result as boolean, value: answer.values[0] };
  }

  /** Resolves with whether all `keys` exist. */
  async check(keys: readonly string[]): Promise<boolean> {
    return (await this.#call({ op: 'check', keys })).reply.result as boolean;
  }

  /**
   * Resolves when all `keys` have been set; where it times out, the error names those that were
   * not.
   */
  async wait(keys: readonly string[], options?: StoreWaitOptions): Promise<void> {
    await this.#call({ op: 'wait', keys, timeoutMs: this.#timeout(options) });
  }

  /** Deletes a key, and resolves with whether there was one. */
  async deleteKey(key: string): Promise<boolean> {
    return (await this.#call({ op: 'delete', key })).reply.result as boolean;
  }

  /** Resolves with the number of keys of this run and attempt. */
  async numKeys(): Promise<number> {
    return (await this.#call({ op: 'numKeys' })).reply.result as number;
  }

  /**
   * Resolves when every rank has called it with this name, which can then be used again. When one
   * rank's time is over, all that wait and all that come later reject: `ranks` of the error are the
   * late ones.
   */
  async barrier(name: string, options?: StoreWaitOptions): Promise<void> {
    await this.#call({ op: 'barrier', name, timeoutMs: this.#timeout(options) });
  }

  /** Leaves: pending and later calls reject with STORE_CLOSED. */
  async close(): Promise<void> {
    this.#fail(new StoreError('STORE_CLOSED', 'store: it is closed'));
    this.#socket.close(1000, '');
    await this.#closed;
    await this.#options.onClosed?.();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #timeout(options: StoreWaitOptions | undefined): number {
    return options?.timeoutMs ?? this.#options.timeoutMs;
  }

  #call(
    request: WithoutId<StoreRequest>,
    values: readonly Uint8Array[] = [],
  ): Promise<{ readonly reply: StoreReply; readonly values: readonly Uint8Array[] }> {
    return new Promise((resolve, reject) => {
      if (this.#end !== undefined) {
        reject(this.#end);
        return;
      }
      const id = this.#nextId++;
      this.#calls.set(id, { resolve, reject });
      this.#onCallsChanged();
      this.#send({ ...request, id } as StoreRequest, values);
    });
  }

  #send(request: StoreRequest, values: readonly Uint8Array[] = []): void {
    for (const piece of encodeMessage(request, values)) {
      this.#socket.send(piece);
    }
  }

  #onPiece(piece: Uint8Array): void {
    this.#silentTicks = 0;
    try {
      const message = this.#reader.push(piece);
      if (message !== undefined) {
        this.#onReply(message.header as StoreReply, message.values);
      }
    } catch (error) {
      this.#lose(`it sent what can't be read: ${(error as Error).message}`);
    }
  }

  #onReply(reply: StoreReply, values: readonly Uint8Array[]): void {
    const call = this.#calls.get(reply.id);
    this.#calls.delete(reply.id); // the answer to a sign of life has no call
    if (reply.error === undefined) {
      call?.resolve({ reply, values });
    } else {
      call?.reject(new StoreError(reply.error.code, reply.error.message, reply.error));
    }
    this.#onCallsChanged();
  }

  /**
   * Notes whether any call waits. While none does, the process may end and the server may be
   * silent.
   */
  #onCallsChanged(): void {
    const isWaiting = this.#calls.size > 0;
    if (isWaiting === (this.#timer !== undefined)) {
      return;
    }
    this.#socket.setKeepsAlive?.(isWaiting);
    if (isWaiting) {
      this.#silentTicks = 0;
      this.#timer = setInterval(() => this.#tick(), this.#options.silenceMs / TICKS);
      this.#timer.unref();
    } else {
      clearInterval(this.#timer);
      this.#timer = undefined;
    }
  }

  // Silence is counted in ticks, not in time: after a minute of work in this process one tick comes
  // late, and what the server has sent is read before the next one.
  #tick(): void {
    if (this.#silentTicks >= TICKS) {
      this.#lose(`silent for ${this.#options.silenceMs} ms`);
      return;
    }
    this.#silentTicks++;
    this.#send({ id: -1, op: 'alive' });
  }

  #lose(reason: string): void {
    this.#fail(lost(reason));
    this.#socket.terminate();
  }

  #fail(error: StoreError): void {
    this.#end ??= error;
    for (const call of this.#calls.values()) {
      call.reject(error);
    }
    this.#calls.clear();
    this.#onCallsChanged();
  }
}

function lost(reason: string): StoreError {
  return new StoreError('STORE_LOST', `store: the server is lost (${reason})`);
}

function bytesOf(key: string, value: Uint8Array | string): Uint8Array {
  if (typeof value === 'string') {
    return new TextEncoder().encode(value);
  }
  if (!(value instanceof Uint8Array)) {
    const what = `${JSON.stringify(key)}: expected a Uint8Array or a string, got ${typeof value}`;
    throw new StoreError('STORE_USAGE', `store: ${what}.`);
  }
  return value;
}
