// Cases that use plain memory run over registered memory by this group, whose calls all go through
// it. Each buffer of the caller has a twin there with the same layout, so that a view within
// another one stays so.

import type { ProcessGroup } from '@shardweave/collectives';

/** The indices of the arguments that each call reads, and of those it fills. */
const CALLS: Readonly<Record<string, { readonly reads: number[]; readonly fills: number[] }>> = {
  allGather: { reads: [0], fills: [1] },
  reduceScatter: { reads: [0], fills: [1] },
  allReduce: { reads: [0], fills: [1] },
  gather: { reads: [0], fills: [1] },
  broadcast: { reads: [0], fills: [0] },
  send: { reads: [0], fills: [] },
  recv: { reads: [], fills: [0] },
};

export function onRegisteredMemory(
  group: ProcessGroup,
  twins = new Map<ArrayBufferLike, Uint8Array>(),
): ProcessGroup {
  const twinOf = (bytes: Uint8Array): Uint8Array => {
    const twin = twins.get(bytes.buffer) ?? group.allocate(bytes.buffer.byteLength);
    twins.set(bytes.buffer, twin);
    return twin.subarray(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  };
  const call = async (name: string, args: unknown[]): Promise<void> => {
    const { reads, fills } = CALLS[name]!;
    const moved = args.map((arg) => (arg instanceof Uint8Array ? twinOf(arg) : arg));
    for (const i of reads) {
      (moved[i] as Uint8Array).set(args[i] as Uint8Array);
    }
    await (group as unknown as Record<string, (...a: unknown[]) => Promise<void>>)[name]!(...moved);
    for (const i of fills) {
      (args[i] as Uint8Array | null)?.set(moved[i] as Uint8Array);
    }
  };
  return new Proxy(group, {
    get: (target, key) => {
      if (typeof key === 'string' && key in CALLS) {
        return (...args: unknown[]) => call(key, args);
      }
      if (key === 'split') {
        return async (color: number, order?: number) =>
          onRegisteredMemory(await target.split(color, order), twins);
      }
      const value = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
    set: (target, key, value) => Reflect.set(target, key, value, target),
  });
}
