// With gradientGroups a step is rounds: in round j rank q runs group j W + q, and all reduce. The
// owner of a shard holds the sums of rounds, log2(groups) + 1 shards at most, and never a whole
// gradient. See nn's Note [groups].

import type { ProcessGroup, TreeOptions } from '@shardweave/collectives';
import { treeNodes } from '@shardweave/dtypes/tree';
import { GroupSums } from '@shardweave/nn/flat';
import { FsdpStateError } from '../errors.js';

type Place = Pick<ProcessGroup, 'rank' | 'worldSize'>;

/** The group that each round of a step runs on a rank; undefined: an empty call. */
export function groupCalls(groups: number, { rank, worldSize }: Place): (number | undefined)[] {
  return Array.from({ length: Math.ceil(groups / worldSize) }, (_, round) => {
    const group = round * worldSize + rank;
    return group < groups ? group : undefined;
  });
}

/** How a round's reductions are made. */
export interface RoundReduction {
  readonly tree: TreeOptions;
  /** Whether this rank's call has a group, and so something to give. */
  readonly isGiving: boolean;
  /** How many sums an owner gets: those of the largest nodes that the round's groups make. */
  readonly numSums: number;
}

export class GroupRounds {
  readonly sums: GroupSums<object>;
  readonly #group: ProcessGroup;

  constructor(
    groups: number,
    group: ProcessGroup,
    { isDry }: { readonly isDry?: boolean | undefined },
  ) {
    const { worldSize } = group;
    const arrivals = groupCalls(groups, { rank: 0, worldSize }).map((first) =>
      treeNodes(groups, first!, Math.min(worldSize, groups - first!)),
    );
    this.sums = new GroupSums({ groups, arrivals, isDry });
    this.#group = group;
  }

  /**
   * Ends the present round.
   * @throws {FsdpStateError} where a step ends of which some calls brought no gradient of a unit
   */
  end(units: readonly { readonly name: string; readonly gradient: object }[]): void {
    const { sums } = this;
    const partly = new Set(sums.present.isLast ? sums.partly() : []);
    const unit = units.find(({ gradient }) => partly.has(gradient));
    if (unit !== undefined) {
      const { rank, worldSize } = this.#group;
      throw new FsdpStateError(
        `rank ${rank}/${worldSize} backward: expected a gradient of '${unit.name}' in all ${sums.groups} groups of a step, got one in some of them. Let each call use the same parameters.`,
      );
    }
    sums.endCall();
  }

  /** The reductions of the present round. */
  get reduction(): RoundReduction {
    const { groups, present } = this.sums;
    const { rank, worldSize } = this.#group;
    const first = present.index * worldSize;
    const counts = Array.from({ length: worldSize }, (_, r) => Number(first + r < groups));
    return {
      tree: { leaves: groups, first, counts },
      isGiving: counts[rank] === 1,
      numSums: present.nodes.length,
    };
  }
}
