// Small texts of all ranks, for agreements outside a step.

import type { ProcessGroup } from '@shardweave/collectives';
import { callIdentity } from './call-identity.js';

/** Each rank's text, in rank order. Collective. */
export async function exchangeText(
  group: ProcessGroup,
  text: string,
  call: { readonly operation: string; readonly what?: string },
): Promise<string[]> {
  if (group.worldSize === 1) {
    return [text];
  }
  const tag = call.what ?? call.operation;
  const identity = callIdentity(call.operation, call.what);
  const own = new TextEncoder().encode(text);
  const lengths = new Uint32Array(group.worldSize);
  const length = new Uint8Array(Uint32Array.of(own.byteLength).buffer);
  await group.allGather(length, new Uint8Array(lengths.buffer), {
    dtype: 'u32',
    tag,
    identity,
  });
  const counts = [...lengths];
  const all = new Uint8Array(counts.reduce((sum, count) => sum + count, 0));
  await group.allGather(own, all, { counts, tag, identity });
  let end = 0;
  return counts.map((count) => {
    end += count;
    return new TextDecoder().decode(all.subarray(end - count, end));
  });
}
