// The ring of commands in the linear memory. The host writes commands into its slots; the engine
// sees those that are published, and counts those that have run, whose times it leaves in their
// slots. Numbers of commands have 32 bits and wrap.

import {
  CONTROL_BASE,
  CTL_COMPLETED,
  CTL_HEAD,
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
} from '../../../assembly/layout.js';
import type { BackendTraceSink } from '../../backend.js';
import type { Engine } from './engine.js';
import type { Staging } from './staging.js';
import type { WasmMemory } from './wasm-memory.js';

const HEAD = (CONTROL_BASE + CTL_HEAD) / 4;
const COMPLETED = (CONTROL_BASE + CTL_COMPLETED) / 4;
/** An idle engine is woken once per so many small commands, or at the end of the microtask. */
const WAKE_BATCH = 8;

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

export class CommandRing {
  readonly #memory: WasmMemory;
  readonly #staging: Staging;
  /** The engine that takes the commands, once it has started. */
  engine: Engine | undefined;
  numWritten = 0;
  /** All commands before this number have run, as a fence tells before the engine counts it. */
  drained = 0;
  sink: BackendTraceSink | undefined;
  /** The commands that the engine may see. */
  #numPublished = 0;
  #isPublishQueued = false;
  readonly #traceNames: (string | undefined)[] = [];
  #numTraced = 0;

  constructor(memory: WasmMemory, staging: Staging) {
    this.#memory = memory;
    this.#staging = staging;
  }

  get numCompleted(): number {
    return Atomics.load(this.#memory.words, COMPLETED);
  }

  /** The number of commands that are written and not counted as run. */
  get numInFlight(): number {
    return (this.numWritten - this.numCompleted) | 0;
  }

  /** Whether the engine has counted all that was written. */
  get isCompleted(): boolean {
    return this.numCompleted === this.numWritten;
  }

  /** Whether the engine has nothing left to do of what was written. */
  get hasRunAll(): boolean {
    return this.drained === this.numWritten || this.isCompleted;
  }

  /** Lets the engine see everything written. */
  publish(): void {
    if (this.#numPublished !== this.numWritten) {
      this.#numPublished = this.numWritten;
      Atomics.store(this.#memory.words, HEAD, this.numWritten);
      this.engine!.wake();
    }
  }

  trace(sink: BackendTraceSink | undefined): void {
    this.reportTrace();
    this.sink = sink;
    this.#numTraced = this.numCompleted;
  }

  /** Tells the sink, if there is one, of the commands that have run since. */
  reportTrace(): void {
    const sink = this.sink;
    if (sink === undefined) {
      return;
    }
    const { numCompleted } = this;
    for (; this.#numTraced !== numCompleted; this.#numTraced = (this.#numTraced + 1) | 0) {
      const index = this.#numTraced & (RING_SLOTS - 1);
      const name = this.#traceNames[index];
      if (name !== undefined) {
        this.#traceNames[index] = undefined;
        const at = RING_BASE + index * SLOT_BYTES;
        const startMs = this.#memory.doubles[(at + SLOT_START * 4) / 8]!;
        const endMs = this.#memory.doubles[(at + SLOT_END * 4) / 8]!;
        const track = name === 'write' || name === 'read' ? 'staging' : 'device';
        sink({ name, track, startMs, endMs });
      }
    }
  }

  /** Puts a command into the ring, or returns false where there is no room now. */
  write(command: Command, slots: number): boolean {
    while (this.numInFlight >= slots) {
      if (!this.drain()) {
        return false;
      }
    }
    let address = 0;
    if (command.payload !== undefined) {
      address = this.#staging.put(command.payload, this.numWritten, this.numCompleted);
      while (address === 0 && this.drain()) {
        address = this.#staging.put(command.payload, this.numWritten, this.numCompleted);
      }
      if (address === 0) {
        return false;
      }
    }
    this.reportTrace();
    const words = this.#memory.words;
    const index = this.numWritten & (RING_SLOTS - 1);
    const slot = (RING_BASE + index * SLOT_BYTES) / 4;
    // The number is written first: see Note [chunks] in assembly/threaded.ts.
    Atomics.store(words, slot + SLOT_SEQ, this.numWritten);
    Atomics.store(words, slot + SLOT_NEXT, 0);
    words[slot + SLOT_DONE] = 0;
    words[slot + SLOT_CHUNKS] = command.chunks;
    words[slot + SLOT_OP] = command.op;
    const isTraced = this.sink !== undefined && command.name !== undefined;
    words[slot + SLOT_TRACE] = isTraced ? 1 : 0;
    this.#traceNames[index] = isTraced ? command.name : undefined;
    const args = slot + SLOT_ARGS;
    for (let i = 0; i < command.argCount; i++) {
      words[args + i] = command.args[i]!;
    }
    for (const i of command.payloadArgs) {
      words[args + i] = words[args + i]! + address;
    }
    this.numWritten = (this.numWritten + 1) | 0;
    this.#publishSoon(command.chunks > 1);
    return true;
  }

  /** Lets an inline engine run a command. Returns false with threads, which are not waited for. */
  drain(): boolean {
    this.publish();
    return this.engine!.drain();
  }

  /**
   * Shows the engine what is written. It does so at once where the work is large, or the engine is
   * busy and need not be woken, and otherwise in batches.
   */
  #publishSoon(isLarge: boolean): void {
    const pending = (this.numWritten - this.#numPublished) | 0;
    if (isLarge || pending >= WAKE_BATCH || this.numCompleted !== this.#numPublished) {
      this.publish();
    } else if (!this.#isPublishQueued) {
      this.#isPublishQueued = true;
      queueMicrotask(() => {
        this.#isPublishQueued = false;
        this.publish();
      });
    }
  }
}
