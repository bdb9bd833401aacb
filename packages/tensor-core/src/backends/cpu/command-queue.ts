// The queue of commands from the host to the engine is a ring in the linear memory. Committing
// never blocks. Commands that do not fit the ring, or whose bytes do not fit the staging memory,
// wait in a list on the host, which moves on as commands finish. A host that would fill that list
// with payloads awaits whenFewWait first. Numbers of commands have 32 bits and wrap.

import {
  CONTROL_BASE,
  CTL_COMPLETED,
  CTL_HEAD,
  OP_FENCE,
  RING_BASE,
  RING_SLOTS,
  SLOT_ARGS,
  SLOT_BYTES,
  SLOT_CHUNKS,
  SLOT_DONE,
  SLOT_END,
  SLOT_NEXT,
  SLOT_OP,
  SLOT_SEQ,
  SLOT_START,
  SLOT_TRACE,
  SLOT_WORDS,
} from '../../../assembly/layout.js';
import type { BackendTraceSink } from '../../backend.js';
import type { Engine } from './engine.js';
import type { Staging } from './staging.js';
import type { WasmMemory } from './wasm-memory.js';

const HEAD = (CONTROL_BASE + CTL_HEAD) / 4;
const COMPLETED = (CONTROL_BASE + CTL_COMPLETED) / 4;
/** An idle engine is woken once per so many small commands, or at the end of the microtask. */
const WAKE_BATCH = 8;
/** The most payload bytes in the waiting list at which whenFewWait resolves. */
const FEW_BYTES = 16 * 1024 * 1024;

/** One command as the encoder leaves it. */
export interface Command {
  readonly op: number;
  readonly chunks: number;
  /** The arguments, which are copied. */
  readonly args: Int32Array;
  readonly argCount: number;
  /** The bytes that travel with it, and the arguments to which their address is added. */
  readonly payload: Uint8Array | undefined;
  readonly payloadArgs: readonly number[];
  /** The name in a trace; undefined where it is not traced. */
  readonly name: string | undefined;
}

/** Work that the host does itself, at its place between the commands. */
export interface HostCommand {
  readonly name: string;
  /** Does the work over the whole linear memory of that moment. What it throws fails the queue. */
  readonly run: (memory: ArrayBufferLike) => void;
}

interface Waiter {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

export class CommandQueue {
  readonly #memory: WasmMemory;
  readonly #staging: Staging;
  #engine: Engine | undefined;
  /** The number of commands written to the ring, and of those that the engine may see. */
  #written = 0;
  #published = 0;
  #isPublishQueued = false;
  #waiting: (Command | HostCommand)[] = [];
  /** The number of waiting commands that have moved on to the ring. */
  #moved = 0;
  /** The payload bytes of those that have not. */
  #waitingBytes = 0;
  #untilFew: Waiter[] = [];
  /** The fences by id. The one in `#drainFence` moves the waiting list on. */
  readonly #fences = new Map<number, Waiter>();
  #nextFence = 1;
  #hasDrainFence = false;
  /** All commands before this number are known to have run. */
  #drained = 0;
  #isHostRunning = false;
  #failure: Error | undefined;
  #sink: BackendTraceSink | undefined;
  readonly #traceNames: (string | undefined)[] = [];
  #traced = 0;

  constructor(memory: WasmMemory, staging: Staging) {
    this.#memory = memory;
    this.#staging = staging;
  }

  start(engine: Engine): void {
    this.#engine = engine;
  }

  get failure(): Error | undefined {
    return this.#failure;
  }

  /** Whether everything committed has run. */
  get isIdle(): boolean {
    return this.#waiting.length === 0 && this.#completed() === this.#written;
  }

  /** The bytes in the host's memory that travel with commands of the waiting list. */
  get waitingBytes(): number {
    return this.#waitingBytes;
  }

  /** Resolves when few bytes wait: at most FEW_BYTES. */
  whenFewWait(): Promise<void> {
    if (this.#failure !== undefined) {
      return Promise.reject(this.#failure);
    }
    if (this.#waitingBytes <= FEW_BYTES) {
      return Promise.resolve();
    }
    // A drain fence is under way as long as anything waits, so the list moves on by itself.
    return new Promise((resolve, reject) => this.#untilFew.push({ resolve, reject }));
  }

  commit(command: Command): void {
    if (this.#failure !== undefined) {
      return;
    }
    if (this.#waiting.length > 0) {
      this.#advance();
    }
    if (this.#waiting.length > 0 || !this.#write(command, RING_SLOTS - 1)) {
      this.#waiting.push(keep(command));
      this.#waitingBytes += command.payload?.byteLength ?? 0;
      this.#requestDrain();
    }
  }

  /**
   * Runs `host` after all commands before it and before all after it. It runs at once where
   * everything before has run or an inline engine can run it now. Otherwise it waits for a fence,
   * and later commands wait on the host.
   */
  commitHost(host: HostCommand): void {
    if (this.#failure !== undefined) {
      return;
    }
    if (this.#waiting.length > 0) {
      this.#advance();
    }
    while (this.#waiting.length === 0 && !this.#hasRunAll() && this.#drain()) {}
    if (this.#waiting.length > 0 || !this.#runHost(host)) {
      this.#waiting.push(host);
      this.#requestDrain();
    }
  }

  /** Lets the engine see everything written. */
  publish(): void {
    if (this.#published !== this.#written) {
      this.#published = this.#written;
      Atomics.store(this.#memory.words, HEAD, this.#written);
      this.#engine!.wake();
    }
  }

  /** Resolves when everything committed so far has run. */
  fence(): Promise<void> {
    if (this.#failure !== undefined) {
      return Promise.reject(this.#failure);
    }
    return new Promise((resolve, reject) => {
      const id = this.#addFence({ resolve, reject });
      this.commit(fenceCommand(id));
      this.publish();
    });
  }

  onFence(id: number): void {
    const waiter = this.#fences.get(id);
    this.#fences.delete(id);
    if (this.#fences.size === 0) {
      this.#engine!.hold(false);
    }
    this.reportTrace();
    waiter?.resolve();
  }

  /** Rejects everything pending and whatever comes later. The first failure stays. */
  fail(error: Error): void {
    if (this.#failure !== undefined) {
      return;
    }
    this.#failure = error;
    this.#waiting = [];
    this.#moved = 0;
    this.#waitingBytes = 0;
    const waiters = [...this.#fences.values(), ...this.#untilFew];
    this.#untilFew = [];
    this.#fences.clear();
    this.#engine?.hold(false);
    for (const waiter of waiters) {
      waiter.reject(error);
    }
  }

  trace(sink: BackendTraceSink | undefined): void {
    this.reportTrace();
    this.#sink = sink;
    this.#traced = this.#completed();
  }

  /** Whether the engine has nothing left to do of what was written. */
  #hasRunAll(): boolean {
    return this.#drained === this.#written || this.#completed() === this.#written;
  }

  /** Runs the host's work now, or returns false where commands before it still run. */
  #runHost(host: HostCommand): boolean {
    if (!this.#hasRunAll()) {
      return false;
    }
    this.reportTrace();
    const startMs = performance.now();
    this.#isHostRunning = true;
    try {
      host.run(this.#memory.memory.buffer);
    } catch (error) {
      this.fail(error instanceof Error ? error : new Error(String(error), { cause: error }));
    } finally {
      this.#isHostRunning = false;
    }
    this.#sink?.({ name: host.name, track: 'device', startMs, endMs: performance.now() });
    return true;
  }

  #completed(): number {
    return Atomics.load(this.#memory.words, COMPLETED);
  }

  /** Puts a command into the ring, or returns false where there is no room now. */
  #write(command: Command, slots: number): boolean {
    while (((this.#written - this.#completed()) | 0) >= slots) {
      if (!this.#drain()) {
        return false;
      }
    }
    let address = 0;
    if (command.payload !== undefined) {
      address = this.#staging.put(command.payload, this.#written, this.#completed());
      while (address === 0 && this.#drain()) {
        address = this.#staging.put(command.payload, this.#written, this.#completed());
      }
      if (address === 0) {
        return false;
      }
    }
    this.reportTrace();
    const words = this.#memory.words;
    const index = this.#written & (RING_SLOTS - 1);
    const slot = (RING_BASE + index * SLOT_BYTES) / 4;
    // The number is written first: see Note [chunks] in assembly/threaded.ts.
    Atomics.store(words, slot + SLOT_SEQ, this.#written);
    Atomics.store(words, slot + SLOT_NEXT, 0);
    words[slot + SLOT_DONE] = 0;
    words[slot + SLOT_CHUNKS] = command.chunks;
    words[slot + SLOT_OP] = command.op;
    const isTraced = this.#sink !== undefined && command.name !== undefined;
    words[slot + SLOT_TRACE] = isTraced ? 1 : 0;
    this.#traceNames[index] = isTraced ? command.name : undefined;
    const args = slot + SLOT_ARGS;
    for (let i = 0; i < command.argCount; i++) {
      words[args + i] = command.args[i]!;
    }
    for (const i of command.payloadArgs) {
      words[args + i] = words[args + i]! + address;
    }
    this.#written = (this.#written + 1) | 0;
    this.#publishSoon(command.chunks > 1);
    return true;
  }

  /** Lets an inline engine run a command. Returns false with threads, which are not waited for. */
  #drain(): boolean {
    this.publish();
    return this.#engine!.drain();
  }

  /**
   * Shows the engine what is written. It does so at once where the work is large, or the engine is
   * busy and need not be woken, and otherwise in batches.
   */
  #publishSoon(isLarge: boolean): void {
    const pending = (this.#written - this.#published) | 0;
    if (isLarge || pending >= WAKE_BATCH || this.#completed() !== this.#published) {
      this.publish();
    } else if (!this.#isPublishQueued) {
      this.#isPublishQueued = true;
      queueMicrotask(() => {
        this.#isPublishQueued = false;
        this.publish();
      });
    }
  }

  /** Moves waiting commands into the ring as far as there is room. */
  #advance(): void {
    // A host's command may itself queue some, which then wait behind it.
    while (!this.#isHostRunning && this.#moved < this.#waiting.length) {
      const next = this.#waiting[this.#moved]!;
      if (!('run' in next ? this.#runHost(next) : this.#write(next, RING_SLOTS - 1))) {
        break;
      }
      if (this.#failure !== undefined) {
        return;
      }
      if (!('run' in next) && next.payload !== undefined) {
        this.#waitingBytes -= next.payload.byteLength;
        this.#waiting[this.#moved] = { ...next, payload: undefined };
      }
      this.#moved++;
    }
    if (this.#waitingBytes <= FEW_BYTES) {
      const waiters = this.#untilFew;
      this.#untilFew = [];
      for (const { resolve } of waiters) {
        resolve();
      }
    }
    if (this.#moved === this.#waiting.length) {
      this.#waiting = [];
      this.#moved = 0;
    } else if (this.#moved > RING_SLOTS) {
      this.#waiting = this.#waiting.slice(this.#moved);
      this.#moved = 0;
    }
  }

  /** Puts a fence behind what is in the ring, after which the waiting list moves on. */
  #requestDrain(): void {
    if (this.#hasDrainFence) {
      return;
    }
    this.#hasDrainFence = true;
    let end = 0;
    const resolve = () => {
      this.#hasDrainFence = false;
      this.#drained = end;
      this.#advance();
      if (this.#waiting.length > 0) {
        this.#requestDrain();
      }
    };
    const id = this.#addFence({ resolve, reject: () => {} });
    // One slot is kept for the fence: commands stop at RING_SLOTS - 1.
    this.#write(fenceCommand(id), RING_SLOTS);
    end = this.#written;
    this.publish();
  }

  #addFence(waiter: Waiter): number {
    const id = this.#nextFence;
    this.#nextFence = (id + 1) | 0 || 1; // 0 is no fence
    if (this.#fences.size === 0) {
      this.#engine!.hold(true);
    }
    this.#fences.set(id, waiter);
    return id;
  }

  /** Tells the sink, if there is one, of the commands that have run since. */
  reportTrace(): void {
    const sink = this.#sink;
    if (sink === undefined) {
      return;
    }
    const completed = this.#completed();
    for (; this.#traced !== completed; this.#traced = (this.#traced + 1) | 0) {
      const index = this.#traced & (RING_SLOTS - 1);
      const name = this.#traceNames[index];
      if (name !== undefined) {
        this.#traceNames[index] = undefined;
        const at = RING_BASE + index * SLOT_BYTES;
        const startMs = this.#memory.doubles[(at + SLOT_START * 4) / 8]!;
        const endMs = this.#memory.doubles[(at + SLOT_END * 4) / 8]!;
        sink({
          name,
          track: name === 'write' || name === 'read' ? 'staging' : 'device',
          startMs,
          endMs,
        });
      }
    }
  }
}

function fenceCommand(id: number): Command {
  const args = new Int32Array([id]);
  const none = { payload: undefined, payloadArgs: [], name: undefined };
  return { op: OP_FENCE, chunks: 1, args, argCount: 1, ...none };
}

/** Returns a copy of a command that the encoder and the caller cannot change any more. */
function keep(command: Command): Command {
  return {
    ...command,
    args: command.args.slice(0, Math.min(command.argCount, SLOT_WORDS)),
    payload: command.payload?.slice(),
  };
}
