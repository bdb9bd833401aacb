// Without threads the host itself runs the commands, in call order.

import { fence, finishCommand, noteStart, runChunk, startTime } from './dispatch';
import {
  CONTROL_BASE,
  CTL_COMPLETED,
  CTL_HEAD,
  RING_BASE,
  RING_SLOTS,
  SCRATCH_BASE,
  SLOT_BYTES,
  SLOT_CHUNKS,
} from './layout';
import { setScratch } from './slot';

/** Runs the next command and returns whether there was one. */
export function runNext(): bool {
  setScratch(SCRATCH_BASE);
  const next = load<u32>(CONTROL_BASE + CTL_COMPLETED);
  if (next == load<u32>(CONTROL_BASE + CTL_HEAD)) {
    return false;
  }
  const slot = <usize>RING_BASE + <usize>(next & (RING_SLOTS - 1)) * SLOT_BYTES;
  const chunks = load<u32>(slot + (SLOT_CHUNKS << 2));
  noteStart(slot, startTime(slot));
  for (let c: u32 = 0; c < chunks; c++) {
    runChunk(slot, c);
  }
  const id = finishCommand(slot);
  store<u32>(CONTROL_BASE + CTL_COMPLETED, next + 1);
  if (id != 0) {
    fence(id);
  }
  return true;
}
