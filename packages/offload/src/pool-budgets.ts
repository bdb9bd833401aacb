// Budgets of several models on one device: its pool keeps the smallest of those that live.

import type { Device } from '@shardweave/tensor-core';

type Pool = Device['pool'];

interface Budgets {
  /** The pool's limit without them. */
  readonly ownBytes: number;
  readonly byOwner: Map<object, number>;
}

// Keyed by pool: a fact about it, not state of this module.
const BUDGETS = new WeakMap<Pool, Budgets>();

/** Gives back what the pool has free and limits it until `endBudget`. */
export function beginBudget(pool: Pool, owner: object, bytes: number): void {
  const budgets = BUDGETS.get(pool) ?? { ownBytes: pool.limitBytes, byOwner: new Map() };
  BUDGETS.set(pool, budgets);
  budgets.byOwner.set(owner, bytes);
  pool.trim();
  pool.limitBytes = Math.min(budgets.ownBytes, ...budgets.byOwner.values());
}

export function endBudget(pool: Pool, owner: object): void {
  const budgets = BUDGETS.get(pool);
  if (budgets === undefined || !budgets.byOwner.delete(owner)) {
    return;
  }
  pool.limitBytes = Math.min(budgets.ownBytes, ...budgets.byOwner.values());
  if (budgets.byOwner.size === 0) {
    BUDGETS.delete(pool);
  }
}
