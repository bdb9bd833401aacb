// Broadcast of large buffers (van de Geijn's algorithm): the root gives every other rank one part,
// and they give their parts to each other. The root's link carries the buffer once instead of W - 1
// times. Nothing is added up, so the way that the bytes take doesn't show in the result.

import type { Call } from '../endpoint/call.js';
import { balancedParts, partOf, planSegments, segmentOf } from './part-layout.js';

/**
 * For fewer bytes a second hop costs more than the root saves: measured by the root's CPU time on
 * one host, 256 KiB are better sent whole and 1 MiB in parts
 * (bench/reports/2026-11-21-collectives-thresholds.md).
 */
const SCATTER_MIN_BYTES = 512 * 1024;

const EMPTY = new Uint8Array(0);

/**
 * Whether a broadcast goes in parts, decided alike on all ranks. Where payloads are lent, each
 * receiver copies from the root itself.
 */
export function isScattered(call: Call, byteLength: number): boolean {
  return call.worldSize > 2 && !call.isLending && byteLength >= SCATTER_MIN_BYTES;
}

/** Sends the root's `buffer` to all other ranks. */
export async function scatterBroadcast(
  call: Call,
  buffer: Uint8Array,
  root: number,
): Promise<void> {
  const others = Array.from({ length: call.worldSize }, (_, r) => r).filter((r) => r !== root);
  const layout = balancedParts(others.length, buffer.byteLength, 1);
  const plan = planSegments(layout);
  const rounds = Array.from({ length: plan.numRounds }, (_, round) => round);
  const segment = (index: number, round: number) =>
    segmentOf(partOf(buffer, layout, index), plan, round);

  if (call.rank === root) {
    // All ranks have called before anything is sent, so what is passed on finds its buffer, too.
    await Promise.all(others.map((peer) => call.receive(peer, EMPTY)));
    for (const round of rounds) {
      others.forEach((peer, index) => {
        void call.send(peer, segment(index, round), 1 + round);
      });
    }
    return;
  }

  const fromRoot = rounds.map(async (round) => {
    const own = segment(others.indexOf(call.rank), round);
    await call.receive(root, own, 1 + round);
    for (const peer of call.peers) {
      if (peer !== root) {
        void call.send(peer, own, 1 + plan.numRounds + round);
      }
    }
  });
  const passedOn = others.flatMap((peer, index) =>
    peer === call.rank
      ? []
      : rounds.map((round) =>
          call.receive(peer, segment(index, round), 1 + plan.numRounds + round),
        ),
  );
  await Promise.all([call.send(root, EMPTY), ...fromRoot, ...passedOn]);
}
