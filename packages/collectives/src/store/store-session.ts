// One client of a store's server, after it has proved that it knows the secret: reads its requests,
// answers each, and withdraws its waiting calls when it goes.

import { StoreError } from '../errors.js';
import { type Hello, isSameRun, runDigest } from '../sockets/handshake.js';
import type { WireSocket } from '../sockets/wire-socket.js';
import type { StoreLimits } from './store-limits.js';
import {
  encodeMessage,
  MessageReader,
  STALE_CODE,
  type StoreReply,
  type StoreRequest,
} from './store-messages.js';
import { checkRequest } from './store-request.js';
import type { StoreMember, StoreRun, StoreRuns } from './store-runs.js';
import { quote, type Waiting } from './store-table.js';

/** A client that leaves this many bytes of replies unread is dropped. */
const MAX_BACKLOG_BYTES = 16 * 1024 * 1024;

/** Stands for the rank of a client that is not a rank. */
export const NO_RANK = 0xffffffff;

export interface StoreSessionOptions {
  readonly socket: WireSocket;
  readonly hello: Hello;
  readonly runs: StoreRuns;
  readonly limits: StoreLimits;
  /** Called once, when the client has gone or was sent away. */
  onEnd(): void;
}

type ServedRequest = Exclude<StoreRequest, { readonly op: 'open' }>;

type Answer = Pick<StoreReply, 'result'> & { readonly values?: readonly Uint8Array[] };

export class StoreSession implements StoreMember {
  readonly #options: StoreSessionOptions;
  readonly #reader: MessageReader;
  /** The functions that withdraw the waiting calls, by the calls' ids. */
  readonly #pending = new Map<number, () => void>();
  #runId = '';
  #run: StoreRun | undefined;
  #backlogBytes = 0;
  #hasEnded = false;

  constructor(options: StoreSessionOptions) {
    this.#options = options;
    // The largest request is a compareSet, which has two values.
    this.#reader = new MessageReader(2 * options.limits.maxValueBytes);
    options.socket.setHandler({
      onBinary: (bytes) => this.#onPiece(bytes),
      onText: () => options.socket.terminate(),
      onClose: () => this.#end(),
    });
  }

  evict(reason: string): void {
    this.#options.socket.close(STALE_CODE, reason);
    this.#end();
  }

  /** Ends the connection at once; the client sees a lost server. */
  terminate(): void {
    this.#options.socket.terminate();
    this.#end();
  }

  #end(): void {
    if (this.#hasEnded) {
      return;
    }
    this.#hasEnded = true;
    for (const withdraw of this.#pending.values()) {
      withdraw();
    }
    this.#pending.clear();
    if (this.#run !== undefined) {
      this.#options.runs.leave(this.#runId, this.#run, this);
      this.#run = undefined;
    }
    this.#options.onEnd();
  }

  #onPiece(piece: Uint8Array): void {
    if (this.#hasEnded) {
      return;
    }
    try {
      const message = this.#reader.push(piece);
      if (message !== undefined) {
        this.#serve(checkRequest(message.header, this.#options.limits), message.values);
      }
    } catch {
      this.terminate(); // what it sends can't be read: it is not a client of this package
    }
  }

  #serve(request: StoreRequest | StoreReply, values: readonly Uint8Array[]): void {
    if (!('op' in request)) {
      this.#reply(request); // refused by checkRequest
      return;
    }
    const { id } = request;
    try {
      if (request.op === 'open') {
        this.#open(request.runId);
        this.#reply({ id });
        return;
      }
      const answer = this.#answer(request, values);
      if (answer !== undefined) {
        const { values: found, ...rest } = answer;
        this.#reply({ id, ...rest }, found);
      }
    } catch (error) {
      this.#refuse(id, error);
    }
  }

  #open(runId: string): void {
    if (this.#run !== undefined) {
      throw new StoreError('STORE_USAGE', 'store: it is open');
    }
    const { hello, runs } = this.#options;
    if (!isSameRun(runDigest(runId), hello.run)) {
      throw new StoreError('STORE_USAGE', 'store: it opens another run than it has proved');
    }
    const worldSize = hello.rank === NO_RANK ? undefined : hello.worldSize;
    this.#run = runs.join(this, { runId, attempt: hello.attempt, worldSize });
    this.#runId = runId;
  }

  /** Does what is asked. Returns the answer, or undefined where it comes later. */
  #answer(request: ServedRequest, values: readonly Uint8Array[]): Answer | undefined {
    if (this.#run === undefined) {
      throw new StoreError('STORE_USAGE', 'store: open comes first');
    }
    const { table } = this.#run;
    const [first = new Uint8Array(0), second] = values;
    switch (request.op) {
      case 'set':
        table.set(request.key, first);
        return {};
      case 'add':
        return { result: table.add(request.key, request.amount) };
      case 'compareSet': {
        const result = table.compareSet(request.key, second, first);
        const value = table.get(request.key);
        return { result, values: value === undefined ? [] : [value] };
      }
      case 'delete':
        return { result: table.delete(request.key) };
      case 'alive':
        return {};
      case 'numKeys':
        return { result: table.numKeys };
      case 'check':
        return { result: table.missing(request.keys).length === 0 };
      case 'barrier':
        this.#barrier(request);
        return undefined;
      default:
        this.#wait(request);
        return undefined;
    }
  }

  #wait(request: Extract<StoreRequest, { op: 'get' | 'wait' }>): void {
    const { table } = this.#run!;
    const { id, op, timeoutMs } = request;
    const keys = op === 'get' ? [request.key] : request.keys;
    this.#begin(id, {
      timeoutMs,
      start: (waiting) => table.wait(keys, waiting),
      onDone: () => this.#reply({ id }, op === 'get' ? [table.get(request.key)!] : []),
      onLate: () => {
        const missing = table.missing(keys);
        const text = `nobody has set ${missing.map(quote).join(', ')} within ${timeoutMs} ms`;
        this.#refuse(
          id,
          new StoreError('STORE_TIMEOUT', `store ${op}: ${text}`, { keys: missing }),
        );
      },
    });
  }

  #barrier({ id, name, timeoutMs }: Extract<StoreRequest, { op: 'barrier' }>): void {
    const { table } = this.#run!;
    const { rank, worldSize } = this.#options.hello;
    if (rank === NO_RANK) {
      throw new StoreError('STORE_USAGE', `store barrier ${quote(name)}: only ranks have one`);
    }
    this.#begin(id, {
      timeoutMs,
      start: (waiting) => table.enter(name, { rank, worldSize }, waiting),
      onDone: () => this.#reply({ id }),
      onLate: () => table.giveUp(name, timeoutMs),
    });
  }

  /**
   * Lets a call wait: what `start` waits for settles it, or its time limit does, or it is withdrawn
   * at the end.
   */
  #begin(
    id: number,
    call: {
      readonly timeoutMs: number;
      start(waiting: Waiting): () => void;
      onDone(): void;
      onLate(): void;
    },
  ): void {
    const { maxPendingCalls } = this.#options.limits;
    if (this.#pending.size >= maxPendingCalls) {
      const text = `${maxPendingCalls} calls of this client wait already`;
      throw new StoreError('STORE_LIMIT', `store: ${text}`);
    }
    const finish = (then: () => void) => {
      clearTimeout(timer);
      this.#pending.delete(id);
      then();
    };
    let withdraw = () => {};
    const timer = setTimeout(() => {
      // A barrier that is given up rejects this call, too; a wait is withdrawn first.
      call.onLate();
      if (this.#pending.has(id)) {
        withdraw();
        finish(() => {});
      }
    }, call.timeoutMs).unref();
    this.#pending.set(id, () => {
      clearTimeout(timer);
      withdraw();
    });
    try {
      withdraw = call.start({
        resolve: () => finish(call.onDone),
        reject: (error) => finish(() => this.#refuse(id, error)),
      });
    } catch (error) {
      finish(() => {});
      throw error;
    }
  }

  #refuse(id: number, error: unknown): void {
    if (!(error instanceof StoreError)) {
      throw error;
    }
    const { code, message, keys, ranks } = error;
    this.#reply({ id, error: { code, message, keys, ranks } });
  }

  #reply(reply: StoreReply, values: readonly Uint8Array[] = []): void {
    const { socket } = this.#options;
    for (const piece of encodeMessage(reply, values)) {
      this.#backlogBytes += piece.byteLength;
      socket.send(piece, () => {
        this.#backlogBytes -= piece.byteLength;
      });
    }
    if (this.#backlogBytes > MAX_BACKLOG_BYTES) {
      this.terminate();
    }
  }
}
