// The queue of commands from the host to the engine. Committing never blocks. Commands that do not
// fit the ring, or whose bytes do not fit the staging memory, wait in a list on the host, which
// moves on as commands finish. A host that would fill that list with payloads awaits whenFewWait
// first.

import { OP_FENCE, RING_SLOTS, SLOT_WORDS } from '../../../assembly/layout.js';
import type { Command, CommandRing } from './command-ring.js';
import type { Engine } from './engine.js';
import type { WasmMemory } from './wasm-memory.js';

/** The most payload bytes in the waiting list at which whenFewWait resolves. */
const FEW_BYTES = 16 * 1024 * 1024;

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
  readonly #ring: CommandRing;
  #waiting: (Command | HostCommand)[] = [];
  /** The number of waiting commands that have moved on to the ring. */
  #moved = 0;
  /** The payload bytes of those that have not. */
  #waitingBytes = 0;
  #untilFew: Waiter[] = [];
  /** The fences by id. Where `#hasDrainFence`, one of them moves the waiting list on. */
  readonly #fences = new Map<number, Waiter>();
  #nextFence = 1;
  #hasDrainFence = false;
  #numCommitted = 0;
  /** The last fence that was committed, and the number of commands up to it. */
  #lastFence: { readonly end: number; readonly passed: Promise<void> } | undefined;
  #isHostRunning = false;
  #failure: Error | undefined;

  constructor(memory: WasmMemory, ring: CommandRing) {
    this.#memory = memory;
    this.#ring = ring;
  }

  start(engine: Engine): void {
    this.#ring.engine = engine;
  }

  get failure(): Error | undefined {
    return this.#failure;
  }

  /** Whether everything committed has run. */
  get isIdle(): boolean {
    return this.#waiting.length === 0 && this.#ring.isCompleted;
  }

  /** The number of commands that were committed so far. */
  get numCommitted(): number {
    return this.#numCommitted;
  }

  /** Whether the first `count` commands have surely run. It is false for some that have. */
  hasRun(count: number): boolean {
    // Fences of the queue's own are in the ring without having been committed, so at most so many
    // of the last commands have not run.
    return this.#waiting.length === 0 && count <= this.#numCommitted - this.#ring.numInFlight;
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
    this.#numCommitted++;
    if (this.#waiting.length > 0) {
      this.#advance();
    }
    if (this.#waiting.length > 0 || !this.#ring.write(command, RING_SLOTS - 1)) {
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
    this.#numCommitted++;
    if (this.#waiting.length > 0) {
      this.#advance();
    }
    while (this.#waiting.length === 0 && !this.#ring.hasRunAll && this.#ring.drain()) {}
    if (this.#waiting.length > 0 || !this.#runHost(host)) {
      this.#waiting.push(host);
      this.#requestDrain();
    }
  }

  /** Resolves when everything committed so far has run. */
  fence(): Promise<void> {
    if (this.#failure !== undefined) {
      return Promise.reject(this.#failure);
    }
    const last = this.#lastFence;
    if (last?.end === this.#numCommitted) {
      return last.passed; // nothing was queued since
    }
    const passed = new Promise<void>((resolve, reject) => {
      const id = this.#addFence({ resolve, reject });
      this.commit(fenceCommand(id));
      this.#ring.publish();
    });
    this.#lastFence = { end: this.#numCommitted, passed };
    return passed;
  }

  onFence(id: number): void {
    const waiter = this.#fences.get(id);
    this.#fences.delete(id);
    if (this.#fences.size === 0) {
      this.#ring.engine!.hold(false);
    }
    this.#ring.reportTrace();
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
    this.#ring.engine?.hold(false);
    for (const waiter of waiters) {
      waiter.reject(error);
    }
  }

  /** Runs the host's work now, or returns false where commands before it still run. */
  #runHost(host: HostCommand): boolean {
    if (!this.#ring.hasRunAll) {
      return false;
    }
    this.#ring.reportTrace();
    const startMs = performance.now();
    this.#isHostRunning = true;
    try {
      host.run(this.#memory.memory.buffer);
    } catch (error) {
      this.fail(error instanceof Error ? error : new Error(String(error), { cause: error }));
    } finally {
      this.#isHostRunning = false;
    }
    this.#ring.sink?.({ name: host.name, track: 'device', startMs, endMs: performance.now() });
    return true;
  }

  /** Moves waiting commands into the ring as far as there is room. */
  #advance(): void {
    // A host's command may itself queue some, which then wait behind it.
    while (!this.#isHostRunning && this.#moved < this.#waiting.length) {
      const next = this.#waiting[this.#moved]!;
      if (!('run' in next ? this.#runHost(next) : this.#ring.write(next, RING_SLOTS - 1))) {
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
      this.#ring.drained = end;
      this.#advance();
      if (this.#waiting.length > 0) {
        this.#requestDrain();
      }
    };
    const id = this.#addFence({ resolve, reject: () => {} });
    // One slot is kept for the fence: commands stop at RING_SLOTS - 1.
    this.#ring.write(fenceCommand(id), RING_SLOTS);
    end = this.#ring.numWritten;
    this.#ring.publish();
  }

  #addFence(waiter: Waiter): number {
    const id = this.#nextFence;
    this.#nextFence = (id + 1) | 0 || 1; // 0 is no fence
    if (this.#fences.size === 0) {
      this.#ring.engine!.hold(true);
    }
    this.#fences.set(id, waiter);
    return id;
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
