// The groups that buckets take in turn, so that their sums run beside one another.

import type { ProcessGroup } from '@shardweave/collectives';
import type { ResolvedDdpOptions } from './options.js';

/** Collective where groups are split off: one for each stream. */
export async function openLanes(
  group: ProcessGroup,
  { numStreams, communicators }: Pick<ResolvedDdpOptions, 'numStreams' | 'communicators'>,
): Promise<readonly ProcessGroup[]> {
  if (numStreams === 1) {
    return [group];
  }
  if (communicators !== undefined) {
    return communicators;
  }
  const lanes: ProcessGroup[] = [];
  for (let i = 0; i < numStreams; i++) {
    lanes.push(await group.split(0));
  }
  return lanes;
}
