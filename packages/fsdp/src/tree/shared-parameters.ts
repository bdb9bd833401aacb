// Parameters that one instance shards and other instances use too.
//
// Note [shared parameters]
// The first instance that wraps a parameter owns it: the parameter is in the owner's flat
// parameter, and is gathered and reduced with it. An instance that uses it has the owner's
// parameters made present around its own forward and before its own backward. The owner keeps them
// as long as the forward of a user runs, even where that forward lies around the owner's own. The
// gradient is final when the last use has given its part.

import { FsdpConfigError } from '../errors.js';
import type { FsdpTree } from './fsdp-tree.js';
import type { TreeInstance } from './tree-instance.js';

export class SharedParameters<Instance extends TreeInstance = TreeInstance> {
  readonly #owners: Set<Instance>;
  readonly #users = new Set<Instance>();

  /** @param owners the instances whose parameters this one uses */
  constructor(owners: ReadonlySet<Instance>) {
    this.#owners = new Set(owners);
  }

  get owners(): ReadonlySet<Instance> {
    return this.#owners;
  }

  addOwner(owner: Instance): void {
    this.#owners.add(owner);
  }

  addUser(user: Instance): void {
    this.#users.add(user);
  }

  /** Whether other instances use this one's parameters. */
  get hasUsers(): boolean {
    return this.#users.size > 0;
  }

  /**
   * Whether a user of its parameters is in forward, or in backward, which may run a forward again.
   */
  get isInUse(): boolean {
    return [...this.#users].some(({ activity }) => activity.state !== 'idle');
  }

  /** Makes the owners' parameters present. */
  async enter(tree: FsdpTree<Instance>, phase: 'forward' | 'backward'): Promise<void> {
    for (const owner of this.#owners) {
      if (owner.tree !== tree) {
        throw new FsdpConfigError(
          `fsdp: expected instances that share a parameter below one root, got '${owner.name}' elsewhere. Wrap the module around both, or put them into one wrapped module.`,
        );
      }
      if (owner.activity.state !== 'forward') {
        await tree.scheduler.enter(owner, phase);
      }
    }
  }

  /** Frees what the owners kept for this instance, where nobody else uses it. */
  reshard(): void {
    // An owner in backward is freed when its gradients are final, or at the end.
    for (const owner of this.#owners) {
      if (owner.activity.state === 'idle') {
        owner.reshard();
      }
    }
  }
}
