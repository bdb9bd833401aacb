// Gradients of groups of rows, which make up a step one call after the other. They are added up on
// the host, in the order of one fixed tree over the groups, so that their bits depend neither on
// the number of ranks nor on a device's own sums.
//
// Note [groups]
// Each group is a forward and a backward of its own, with its own shapes, whoever runs it. All
// ranks make as many calls a step; where groups don't divide evenly, some ranks' last call is an
// empty one, which gives nothing. A call that fails may have been added in part, so the step begins
// anew with its first group: after zeroGrad, which says so.

import { RankSum } from '@shardweave/dtypes';
import { dealLeaves, heldSums, type TreeNode, TreeSum, treeSums } from '@shardweave/dtypes/tree';
import { HostBuffers } from './stores/host-buffers.js';

/** What the calls of a step bring to this rank. */
export interface GroupSumsOptions {
  /** The number of groups of a step. */
  readonly groups: number;
  /** By rank, how many of the groups it runs where they follow one another; see dealtGroups. */
  readonly counts?: readonly number[] | undefined;
  /** By call, the nodes of the tree over the groups whose sums come here. */
  readonly arrivals: readonly (readonly TreeNode[])[];
  /** Whether nobody reads what is added. */
  readonly isDry?: boolean | undefined;
}

/** One of the calls that make up a step. */
export interface GroupCall {
  /** Its number in the step, from 0. */
  readonly index: number;
  readonly isLast: boolean;
  /** The nodes whose sums come here in this call. */
  readonly nodes: readonly TreeNode[];
}

/** What is held of one key. */
export interface HeldOfKey {
  /** The sums of its nodes, one after the other. */
  readonly sums: Uint8Array;
  /** The place of the first of them, where the sum of all may be made. */
  readonly place: Uint8Array;
  /** Whether it is the sum of all groups. */
  readonly isWhole: boolean;
}

/** The sums of some nodes, and their memory. */
interface HeldSums {
  readonly memory: Uint8Array;
  readonly byteLength: number;
  readonly sum: TreeSum | undefined;
}

/** A rank's place among those that share the groups. */
interface Place {
  readonly rank: number;
  readonly worldSize: number;
}

/**
 * The groups of a step that each of its calls runs on a rank which adds up whole gradients, so that
 * its groups follow one another; undefined: an empty call. All ranks make as many calls.
 * @param counts by rank, the number of its groups; by default as even as can be
 */
export function dealtGroups(
  groups: number,
  { rank, worldSize }: Place,
  counts: readonly number[] = dealLeaves(groups, worldSize),
): readonly (number | undefined)[] {
  const first = counts.slice(0, rank).reduce((sum, count) => sum + count, 0);
  return Array.from({ length: Math.max(...counts) }, (_, call) =>
    call < counts[rank]! ? first + call : undefined,
  );
}

/** The sums of a step's groups, by key (a bucket, a flat parameter). See Note [groups]. */
export class GroupSums<Key extends object> {
  readonly #options: GroupSumsOptions;
  readonly #hostBuffers: HostBuffers;
  readonly #numHeld: number;
  readonly #held = new Map<Key, HeldSums>();
  #present: GroupCall;
  #isTorn = false;
  #rankSum: Promise<RankSum> | undefined;

  constructor(options: GroupSumsOptions) {
    const { groups, arrivals, isDry } = options;
    this.#options = options;
    this.#hostBuffers = new HostBuffers({ isDry });
    this.#numHeld = Math.max(1, heldSums(groups, arrivals.flat()));
    this.#present = this.#callOf(0);
  }

  /** The sums of the groups that dealtGroups gives a rank: one more in each call. */
  static dealt<Key extends object>(
    groups: number,
    place: Place,
    { isDry, counts = dealLeaves(groups, place.worldSize) }: Partial<GroupSumsOptions>,
  ): GroupSums<Key> {
    const arrivals = dealtGroups(groups, place, counts).map((group) =>
      group === undefined ? [] : [{ first: group, end: group + 1 }],
    );
    return new GroupSums({ groups, counts, arrivals, isDry });
  }

  /** The number of groups of a step. */
  get groups(): number {
    return this.#options.groups;
  }

  /** What an all-reduce of what dealtGroups deals is told of its tree. */
  get tree(): { readonly leaves: number; readonly counts: readonly number[] } {
    const { groups: leaves, counts } = this.#options;
    return { leaves, counts: counts! };
  }

  /** The present call, or the next one where none is under way: another object for each. */
  get present(): GroupCall {
    return this.#present;
  }

  /** Whether a call has failed after others of its step, and nobody has cleared since. */
  get isTorn(): boolean {
    return this.#isTorn;
  }

  /**
   * Adds the sums that a call brings, one for each of its nodes, f32 of `byteLength` bytes each.
   * Does nothing where that call has failed meanwhile.
   */
  async push(
    key: Key,
    call: GroupCall,
    { byteLength, parts }: { readonly byteLength: number; readonly parts: readonly Uint8Array[] },
  ): Promise<void> {
    this.#rankSum ??= RankSum.create();
    const rankSum = await this.#rankSum;
    if (call !== this.#present) {
      return;
    }
    const { groups, isDry } = this.#options;
    const known = this.#held.get(key);
    const memory = known?.memory ?? this.#hostBuffers.take(this.#numHeld * byteLength);
    const options = { leaves: groups, byteLength, memory, rankSum };
    const sum = isDry ? undefined : (known?.sum ?? new TreeSum(options));
    this.#held.set(key, { memory, byteLength, sum });
    for (const [i, node] of call.nodes.entries()) {
      await sum?.push(node, parts[i]!);
    }
  }

  /**
   * What is held of a key until the present call ends; undefined where nothing was pushed.
   */
  heldOf(key: Key): HeldOfKey | undefined {
    const held = this.#held.get(key);
    if (held === undefined) {
      return undefined;
    }
    const { memory, byteLength, sum } = held;
    const { groups, arrivals } = this.#options;
    const arrived = arrivals.slice(0, this.#present.index + 1).flat();
    const nodes = sum?.nodes ?? treeSums(groups, arrived).map(({ node }) => node);
    return {
      sums: memory.subarray(0, nodes.length * byteLength),
      place: memory.subarray(0, byteLength),
      isWhole: nodes[0]?.first === 0 && nodes[0].end === groups,
    };
  }

  /** The keys of which some groups have brought nothing, when a step is over. */
  partly(): Key[] {
    return [...this.#held.keys()].filter((key) => !this.heldOf(key)!.isWhole);
  }

  /** Ends the present call. After the last one everything that was held is given back. */
  endCall(): void {
    if (this.#present.isLast) {
      this.#begin();
    } else {
      this.#present = this.#callOf(this.#present.index + 1);
    }
  }

  /** Drops everything after a call that failed. */
  fail(): void {
    this.#isTorn ||= this.#present.index > 0;
    this.#begin();
  }

  /** Called when gradients are cleared: the step begins with its first group. */
  clear(): void {
    this.#isTorn = false;
    if (this.#present.index > 0) {
      this.#begin();
    }
  }

  #begin(): void {
    for (const { memory } of this.#held.values()) {
      this.#hostBuffers.give(memory);
    }
    this.#held.clear();
    this.#present = this.#callOf(0);
  }

  #callOf(index: number): GroupCall {
    const { arrivals } = this.#options;
    return { index, isLast: index === arrivals.length - 1, nodes: arrivals[index]! };
  }
}
