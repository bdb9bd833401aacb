// The one way into every call that needs all ranks. See Note [one door].

import type { ProcessGroup } from '@shardweave/collectives';
import { FsdpStateError } from '../errors.js';
import { CallQueue } from '../ranks/call-queue.js';
import { callQueueOf } from '../unit/unit-links.js';
import { toFsdpError } from './to-fsdp-error.js';
import type { TrainingState } from './training-state.js';
import type { TreeInstance } from './tree-instance.js';

export interface CollectiveCall {
  /** The name of the call in errors, and for ranks to compare. */
  readonly operation: string;
  /** The states that the instances may be in when it is called. */
  readonly states: readonly TrainingState[];
  /** The instances whose states count. Default: those that it is called for and those below. */
  readonly instances?: readonly TreeInstance[];
}

/**
 * Runs `body` in its turn, once the trees are open.
 * @param fsdp an instance, or several that one call is about
 * @throws {FsdpStateError} at once, where an instance is in another state
 * @throws {FsdpRanksDifferError} where other ranks make another call
 */
export async function collectiveCall<T>(
  fsdp: TreeInstance | readonly TreeInstance[],
  call: CollectiveCall,
  body: () => Promise<T>,
): Promise<T> {
  const roots = 'wrapper' in fsdp ? [fsdp] : fsdp;
  const below = () => roots.flatMap((root) => root.instances());
  const all = below();
  const { operation, states, instances = all } = call;
  for (const instance of instances) {
    instance.activity.expect(operation, states);
  }
  return CallQueue.inTurn(callQueuesOf(all), async () => {
    try {
      for (const root of roots) {
        await root.elect();
      }
      return await body();
    } catch (error) {
      const units = below().flatMap((instance) => instance.units);
      throw toFsdpError(error, { operation, units, group: roots[0]!.processGroup });
    }
  });
}

/** The queues of all groups that the instances take part in. */
export function callQueuesOf(instances: readonly TreeInstance[]): Set<CallQueue> {
  const groups = instances.flatMap(({ processGroup, replicateGroup }): ProcessGroup[] =>
    replicateGroup === undefined ? [processGroup] : [processGroup, replicateGroup],
  );
  return new Set(groups.map(callQueueOf));
}

/**
 * Notes the versions of all shards, for a call that reads them one after another: a step or a load
 * that runs beside it would leave a mixture.
 * @returns a check to run at the end, which throws {FsdpStateError} where a shard has changed since
 */
export function noteShards(fsdp: TreeInstance, operation: string): () => void {
  const units = fsdp.instances().flatMap((instance) => instance.units);
  const versions = units.map(({ flat }) => flat.storage.version);
  return () => {
    const changed = units.find(({ flat }, index) => flat.storage.version !== versions[index]);
    if (changed === undefined) {
      return;
    }
    throw new FsdpStateError(
      `${operation}: expected parameters at rest until it ends, got a step or a load of '${changed.name}' beside it. Await it first.`,
    );
  };
}
