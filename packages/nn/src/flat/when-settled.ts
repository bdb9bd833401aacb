// When bytes that are loaded go right to where they rest.

import type { Storage } from '@shardweave/tensor-core';

/**
 * Waits until what is written into a storage goes right there. Bytes that wait in the queue behind
 * work that uses it are copies, which stay as long as those of Note [one room].
 */
export async function whenSettled(storage: Storage): Promise<void> {
  const { backend } = storage.device;
  await (backend.settle?.(storage.view().buffer) ?? backend.whenWritable?.());
}
