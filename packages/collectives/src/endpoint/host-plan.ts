// Which ranks of a group share a host, and which rank speaks for a host. Sums are combined within
// hosts first, so that each part crosses between two hosts once.

import { hashNumbers } from '../hash-numbers.js';

/** A plan for one group, whose ranks it numbers by their place in the group. */
export class HostPlan {
  /** The host of each rank, as an index into `members`. */
  readonly hostOf: readonly number[];
  /**
   * The ranks of each host, in order: hosts 7, 7, 3, 3 give [[0, 1], [2, 3]]. Hosts come in the
   * order of their lowest rank.
   */
  readonly members: readonly (readonly number[])[];
  /** A hash of the hosts, for ranks to compare. */
  readonly hash: number;

  private constructor(hostOf: readonly number[], members: readonly (readonly number[])[]) {
    this.hostOf = hostOf;
    this.members = members;
    this.hash = hashNumbers(hostOf);
  }

  /**
   * Makes the plan. `hosts` has any number for each rank, equal for ranks that share a host.
   * Undefined where a plan saves nothing: with a single host, or with one rank on each host.
   */
  static of(hosts: readonly number[]): HostPlan | undefined {
    const ids = [...new Set(hosts)];
    if (ids.length === 1 || ids.length === hosts.length) {
      return undefined;
    }
    const members = ids.map((id) => hosts.flatMap((host, rank) => (host === id ? [rank] : [])));
    return new HostPlan(
      hosts.map((host) => ids.indexOf(host)),
      members,
    );
  }

  /**
   * The rank of a host that combines there what belongs to `owner`, and receives there what comes
   * from it. On its own host that is the owner itself. Elsewhere the host's ranks take turns, so
   * that each speaks for about as many owners.
   */
  speaker(host: number, owner: number): number {
    const ownHost = this.hostOf[owner]!;
    if (host === ownHost) {
      return owner;
    }
    const members = this.members[host]!;
    return members[this.members[ownHost]!.indexOf(owner) % members.length]!;
  }

  /** The owners that `rank` speaks for on its host, itself among them. */
  ownersOf(rank: number): number[] {
    const host = this.hostOf[rank]!;
    return this.hostOf.flatMap((_, owner) => (this.speaker(host, owner) === rank ? [owner] : []));
  }

  /** The most owners that any rank speaks for. */
  get maxOwners(): number {
    return Math.max(...this.hostOf.map((_, rank) => this.ownersOf(rank).length));
  }
}
