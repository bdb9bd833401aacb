// This is the loop of a worker thread.
//
// Note [chunks]: all threads look at the same command, the one numbered `completed`, and take its
// chunks one by one, so a thread that the system has suspended holds up at most one chunk. Chunks
// split outputs only. The next chunk and the command's number share a 64-bit word that changes by
// compare-exchange, so a thread that was delayed until its slot was reused fails instead of taking
// a chunk of another command. The thread that finishes the last chunk moves `completed` on.
//
// Note [sleeping]: a thread without work spins briefly, then sleeps until `signal` changes. The
// host wakes one if all sleep, and the thread that takes the first of several chunks wakes the
// others. The counter of sleepers goes up before the last look at the queue, so no wake-up is lost.

import { fence, finishCommand, noteStart, runChunk, startTime } from './dispatch';
import {
  CONTROL_BASE,
  CTL_COMPLETED,
  CTL_HEAD,
  CTL_SIGNAL,
  CTL_SLEEPERS,
  CTL_STOP,
  RING_BASE,
  RING_SLOTS,
  SCRATCH_BASE,
  SCRATCH_BYTES,
  SLOT_BYTES,
  SLOT_CHUNKS,
  SLOT_DONE,
} from './layout';
import { setScratch } from './slot';

/**
 * The number of looks before sleeping, which take some 10 us. The cores are shared with other
 * ranks, so it is not larger.
 */
const SPINS = 4000;

const HEAD: usize = CONTROL_BASE + CTL_HEAD;
const COMPLETED: usize = CONTROL_BASE + CTL_COMPLETED;
const SIGNAL: usize = CONTROL_BASE + CTL_SIGNAL;
const SLEEPERS: usize = CONTROL_BASE + CTL_SLEEPERS;
const STOP: usize = CONTROL_BASE + CTL_STOP;

/** Runs commands until the host says stop. */
export function work(thread: u32): void {
  setScratch(<usize>SCRATCH_BASE + <usize>thread * <usize>SCRATCH_BYTES);
  let idle = 0;
  while (atomic.load<u32>(STOP) == 0) {
    if (tryChunk()) {
      idle = 0;
    } else if (++idle > SPINS) {
      sleep();
      idle = 0;
    }
  }
}

@inline
function slotOf(command: u32): usize {
  return <usize>RING_BASE + <usize>(command & (RING_SLOTS - 1)) * SLOT_BYTES;
}

/** Takes and runs one chunk. Returns whether the caller should look again at once. */
function tryChunk(): bool {
  const command = atomic.load<u32>(COMPLETED);
  if (command == atomic.load<u32>(HEAD)) {
    return false;
  }
  const slot = slotOf(command);
  const word = atomic.load<u64>(slot);
  const chunk = <u32>word;
  if (<u32>(word >> 32) != command) {
    return true;
  }
  const chunks = atomic.load<u32>(slot + (SLOT_CHUNKS << 2));
  if (chunk >= chunks) {
    return false;
  }
  const startMs = chunk == 0 ? startTime(slot) : 0;
  if (atomic.cmpxchg<u64>(slot, word, word + 1) != word) {
    return true;
  }
  noteStart(slot, startMs);
  if (chunk == 0 && chunks > 1) {
    wake();
  }
  runChunk(slot, chunk);
  if (atomic.add<u32>(slot + (SLOT_DONE << 2), 1) + 1 == chunks) {
    const id = finishCommand(slot);
    atomic.store<u32>(COMPLETED, command + 1);
    // The fence comes last, so that the host finds the fence's own slot free.
    if (id != 0) {
      fence(id);
    }
  }
  return true;
}

@inline
function wake(): void {
  if (atomic.load<u32>(SLEEPERS) != 0) {
    atomic.add<u32>(SIGNAL, 1);
    atomic.notify(SIGNAL, -1);
  }
}

function sleep(): void {
  const signal = atomic.load<u32>(SIGNAL);
  atomic.add<u32>(SLEEPERS, 1);
  if (!hasWork() && atomic.load<u32>(STOP) == 0) {
    atomic.wait<i32>(SIGNAL, <i32>signal, -1);
  }
  atomic.sub<u32>(SLEEPERS, 1);
}

/** Returns whether a chunk is free, or the command has moved on since the caller looked. */
function hasWork(): bool {
  const command = atomic.load<u32>(COMPLETED);
  if (command == atomic.load<u32>(HEAD)) {
    return false;
  }
  const slot = slotOf(command);
  const word = atomic.load<u64>(slot);
  return (
    <u32>(word >> 32) != command ||
    <u32>word < atomic.load<u32>(slot + (SLOT_CHUNKS << 2))
  );
}
