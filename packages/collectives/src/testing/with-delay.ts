// A group whose calls take longer, which stands for a slow network in tests of overlap. Calls still
// start at once and in order, and waiting blocks nothing.

import type {
  BarrierOptions,
  CollectiveStats,
  PartsOptions,
  ProcessGroup,
  RecvOptions,
  ReduceCallOptions,
  ReducePartsOptions,
  RootedOptions,
  SendOptions,
  TraceHandler,
} from '../group/process-group.js';
import type { StartOrder } from '../group/start-order.js';

/**
 * `group` with `delayMs` added to every call, subgroups included. Several calls in flight wait at
 * the same time, as messages on a link with latency do. Traces show the longer times.
 */
export function withDelay(group: ProcessGroup, delayMs: number): ProcessGroup {
  return new DelayedGroup(group, delayMs);
}

class DelayedGroup implements ProcessGroup {
  readonly #inner: ProcessGroup;
  readonly #delayMs: number;
  #onTrace: TraceHandler | undefined;

  constructor(inner: ProcessGroup, delayMs: number) {
    this.#inner = inner;
    this.#delayMs = delayMs;
    this.onTrace = inner.onTrace;
  }

  get rank(): number {
    return this.#inner.rank;
  }

  get worldSize(): number {
    return this.#inner.worldSize;
  }

  get id(): string {
    return this.#inner.id;
  }

  get starts(): StartOrder {
    return this.#inner.starts;
  }

  get locals(): Map<symbol, unknown> {
    return this.#inner.locals;
  }

  get onTrace(): TraceHandler | undefined {
    return this.#onTrace;
  }

  set onTrace(handler: TraceHandler | undefined) {
    this.#onTrace = handler;
    this.#inner.onTrace =
      handler && ((trace) => handler({ ...trace, endMs: trace.endMs + this.#delayMs }));
  }

  allGather(input: Uint8Array, output: Uint8Array, options?: PartsOptions): Promise<void> {
    return this.#late(this.#inner.allGather(input, output, options));
  }

  reduceScatter(input: Uint8Array, output: Uint8Array, options: ReducePartsOptions): Promise<void> {
    return this.#late(this.#inner.reduceScatter(input, output, options));
  }

  allReduce(input: Uint8Array, output: Uint8Array, options: ReduceCallOptions): Promise<void> {
    return this.#late(this.#inner.allReduce(input, output, options));
  }

  broadcast(buffer: Uint8Array, options: RootedOptions): Promise<void> {
    return this.#late(this.#inner.broadcast(buffer, options));
  }

  gather(input: Uint8Array, output: Uint8Array | null, options: RootedOptions): Promise<void> {
    return this.#late(this.#inner.gather(input, output, options));
  }

  send(data: Uint8Array, options: SendOptions): Promise<void> {
    return this.#late(this.#inner.send(data, options));
  }

  recv(buffer: Uint8Array, options: RecvOptions): Promise<void> {
    return this.#late(this.#inner.recv(buffer, options));
  }

  barrier(options?: BarrierOptions): Promise<void> {
    return this.#late(this.#inner.barrier(options));
  }

  async split(color: number, key?: number): Promise<ProcessGroup> {
    const group = await this.#late(this.#inner.split(color, key));
    group.onTrace = undefined; // the inner handler adds the delay; the wrapper adds its own
    const delayed = new DelayedGroup(group, this.#delayMs);
    delayed.onTrace = this.#onTrace;
    return delayed;
  }

  allocate(byteLength: number): Uint8Array {
    return this.#inner.allocate(byteLength);
  }

  register(buffer: SharedArrayBuffer): void {
    this.#inner.register(buffer);
  }

  release(memory: Uint8Array | ArrayBufferLike): void {
    this.#inner.release(memory);
  }

  stats(): CollectiveStats {
    return this.#inner.stats();
  }

  abort(reason: string): void {
    this.#inner.abort(reason);
  }

  close(): Promise<void> {
    return this.#inner.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Waits after a success; a failure passes through at once. */
  async #late<T>(result: Promise<T>): Promise<T> {
    const value = await result;
    await new Promise((resolve) => setTimeout(resolve, this.#delayMs));
    return value;
  }
}
