// What all units of one process group share on one rank: the sequences in which collectives start,
// the second sequence for reductions, and host buffers. Kept by group, so that sibling roots over
// one group start in one order.

import type { ProcessGroup } from '@shardweave/collectives';
import { HostBuffers } from '@shardweave/nn/flat';
import { CallQueue } from '../tree/call-queue.js';
import { StartOrder } from './start-order.js';

export interface UnitLinks {
  readonly reduceGroup: ProcessGroup;
  /** Adds up the reduced shards of replicas; undefined without replicas. */
  readonly replicas: { readonly group: ProcessGroup; readonly order: StartOrder } | undefined;
  readonly gathers: StartOrder;
  readonly reductions: StartOrder;
  readonly hostBuffers: HostBuffers;
}

export interface LinkGroups {
  readonly processGroup: ProcessGroup;
  /** 'default': processGroup itself; 'reduceScatter': a second sequence split off it once. */
  readonly processGroupReduceScatter: 'default' | 'reduceScatter' | ProcessGroup;
  readonly replicateGroup: ProcessGroup | undefined;
}

interface GroupLinks {
  /** Split off once; every rank asks for it at the same place of the program. */
  reduceSplit: Promise<ProcessGroup> | undefined;
  readonly order: StartOrder;
  readonly calls: CallQueue;
  readonly hostBuffers: HostBuffers;
}

// Keyed by group object: it is the group's own state, not the module's.
const KNOWN = new WeakMap<ProcessGroup, GroupLinks>();

/** Collective on the first call of a group whose reductions are split off. */
export async function openLinks(groups: LinkGroups): Promise<UnitLinks> {
  const { processGroup, processGroupReduceScatter, replicateGroup } = groups;
  const { order: gathers, hostBuffers } = linksOf(processGroup);
  const reduceGroup = await reduceGroupOf(processGroup, processGroupReduceScatter);
  return {
    reduceGroup,
    replicas:
      replicateGroup === undefined
        ? undefined
        : { group: replicateGroup, order: linksOf(replicateGroup).order },
    gathers,
    reductions: linksOf(reduceGroup).order,
    hostBuffers,
  };
}

/** The turns of calls that need all ranks of the group. */
export function callQueueOf(group: ProcessGroup): CallQueue {
  return linksOf(group).calls;
}

async function reduceGroupOf(
  processGroup: ProcessGroup,
  choice: LinkGroups['processGroupReduceScatter'],
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
  let known = KNOWN.get(group);
  if (known === undefined) {
    known = {
      reduceSplit: undefined,
      order: new StartOrder(),
      calls: new CallQueue(),
      hostBuffers: new HostBuffers(),
    };
    KNOWN.set(group, known);
  }
  return known;
}
