// What all units of one process group share on one rank: the sequences in which collectives start,
// the second sequence for reductions, and host buffers. They belong to the group, so that sibling
// roots over one group start their collectives in one order.

import type { ProcessGroup, StartOrder } from '@shardweave/collectives';
import { HostBuffers } from '@shardweave/nn/flat';
import { CallQueue } from '../ranks/call-queue.js';
import type { RankGroups, ReduceGroup } from '../ranks/rank-groups.js';

export interface UnitLinks {
  readonly reduceGroup: ProcessGroup;
  /** Adds up the reduced shards of replicas; undefined without replicas. */
  readonly replicas: { readonly group: ProcessGroup; readonly order: StartOrder } | undefined;
  readonly gathers: StartOrder;
  readonly reductions: StartOrder;
  readonly hostBuffers: HostBuffers;
}

interface GroupLinks {
  /**
   * The second sequence, split off once; every rank asks for it at the same place of the program.
   */
  reduceSplit: Promise<ProcessGroup> | undefined;
  readonly calls: CallQueue;
  readonly hostBuffers: HostBuffers;
}

const LINKS = Symbol('fsdp links');

/** Opens the links of a group. Collective on the first call where its reductions are split off. */
export async function openLinks(groups: RankGroups): Promise<UnitLinks> {
  const { processGroup, processGroupReduceScatter, replicateGroup } = groups;
  const { hostBuffers } = linksOf(processGroup);
  const reduceGroup = await reduceGroupOf(processGroup, processGroupReduceScatter);
  return {
    reduceGroup,
    replicas:
      replicateGroup === undefined
        ? undefined
        : { group: replicateGroup, order: replicateGroup.starts },
    gathers: processGroup.starts,
    reductions: reduceGroup.starts,
    hostBuffers,
  };
}

/**
 * Whether two units are reduced over the same ranks, so that their reductions form one sequence.
 */
export function isSameReduction(a: UnitLinks, b: UnitLinks): boolean {
  return a.reduceGroup === b.reduceGroup && a.replicas?.group === b.replicas?.group;
}

/** The queue of calls that need all ranks of the group. */
export function callQueueOf(group: ProcessGroup): CallQueue {
  return linksOf(group).calls;
}

async function reduceGroupOf(
  processGroup: ProcessGroup,
  choice: ReduceGroup,
): Promise<ProcessGroup> {
  if (typeof choice !== 'string') {
    return choice;
  }
  if (choice === 'default' || processGroup.worldSize === 1) {
    return processGroup;
  }
  const known = linksOf(processGroup);
  known.reduceSplit ??= processGroup.split(0);
  return known.reduceSplit;
}

function linksOf(group: ProcessGroup): GroupLinks {
  let known = group.locals.get(LINKS) as GroupLinks | undefined;
  if (known === undefined) {
    known = {
      reduceSplit: undefined,
      calls: new CallQueue(),
      hostBuffers: new HostBuffers(),
    };
    group.locals.set(LINKS, known);
  }
  return known;
}
