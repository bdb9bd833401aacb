// Makes the replicas of shards, or of trained parameters that every rank has whole, equal again,
// which drift apart where their optimizers round differently.

import { byteSize } from '@shardweave/dtypes';
import { partsOf } from '@shardweave/nn/flat';
import type { FullyShardedDataParallel } from '../fully-sharded-data-parallel.js';
import { callIdentity } from '../ranks/call-identity.js';
import { collectiveCall } from '../tree/collective-call.js';
import { instanceOf } from '../tree/instance.js';
import { abortOnError } from '../tree/rank-failure.js';

/**
 * Gives every replica the first one's trained parameters, and with shardTrained: false every rank
 * rank 0's. Collective; does nothing where all are sharded without a replicateGroup. Call it after
 * each step where `numericClasses` has several entries; otherwise replicas are equal already.
 * @throws {FsdpStateError} unless the instance is idle
 */
export async function syncReplicas(fsdp: FullyShardedDataParallel): Promise<void> {
  const operation = 'syncReplicas';
  const root = instanceOf(fsdp);
  await collectiveCall(root, { operation, states: ['idle'] }, async () => {
    for (const { units, replicateGroup } of root.instances()) {
      for (const unit of units.filter(({ isAllFrozen }) => !isAllFrozen)) {
        const { name, flat } = unit;
        const replicas = unit.isWhole ? unit.group : replicateGroup;
        if (replicas === undefined) {
          continue;
        }
        const tell = <T>(work: () => Promise<T>) => abortOnError(replicas, operation, work);
        const size = byteSize(flat.dtype);
        const options = { root: 0, tag: name, identity: callIdentity(operation, name) };
        for (const { start, length } of partsOf(flat)) {
          const isFirst = replicas.rank === 0;
          const part = isFirst
            ? await tell(() => unit.values.read(start * size, length * size))
            : new Uint8Array(length * size);
          await replicas.broadcast(part, options);
          if (!isFirst) {
            await tell(() => unit.values.write(part, start * size));
          }
        }
      }
    }
  });
}
