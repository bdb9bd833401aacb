// This makes the results of a group of all ranks in reverse order, so that its ranks differ from
// those of the transport below it.

import type { ProcessGroup } from '@shardweave/collectives';
import { transcriptHash } from '@shardweave/collectives/testing';

export interface ReversedTranscript {
  readonly rank: number;
  readonly hash: number;
  /** One byte of each part or result, by size and operation. */
  readonly seen: readonly (readonly number[])[];
}

export async function reversedTranscript(world: ProcessGroup): Promise<ReversedTranscript> {
  const group = await world.split(0, -world.rank);
  const { rank, worldSize } = group;
  const seen: number[][] = [];
  for (const byteLength of [4, 100_000]) {
    const own = new Uint8Array(byteLength).fill(10 + world.rank);
    const whole = new Uint8Array(byteLength * worldSize);
    const firsts = () => Array.from({ length: worldSize }, (_, r) => whole[r * byteLength]!);
    await group.allGather(own, whole);
    seen.push(firsts());
    whole.fill(0);
    await group.gather(own, rank === 1 ? whole : null, { root: 1 });
    seen.push(firsts());
    await group.broadcast(own, { root: 0 });
    seen.push([own[0]!]);
    const parts = new Uint8Array(byteLength * worldSize);
    for (let r = 0; r < worldSize; r++) {
      parts.fill(r + world.rank, r * byteLength, (r + 1) * byteLength);
    }
    await group.reduceScatter(parts, own, { dtype: 'u8', op: 'sum' });
    seen.push([own[0]!, own.at(-1)!]);
  }
  return { rank, hash: await transcriptHash(group), seen };
}
