// Keeps runs apart, and the attempts of a run: each has keys of its own. When a later attempt
// begins, the keys of the earlier one are dropped and its clients are sent away, so that a
// left-over process is not heard.

import { StoreError } from '../errors.js';
import type { StoreBudget } from './store-limits.js';
import { StoreTable } from './store-table.js';

export interface StoreMember {
  /** Sends the client away, because its run has been started again. */
  evict(reason: string): void;
}

export interface StoreRun {
  readonly attempt: number;
  readonly table: StoreTable;
  readonly members: Set<StoreMember>;
  /** The world size that its ranks give; undefined until one has come. */
  worldSize: number | undefined;
}

export interface JoinRunOptions {
  readonly runId: string;
  readonly attempt: number;
  /** Undefined where the client is not a rank. */
  readonly worldSize: number | undefined;
}

export class StoreRuns {
  readonly #budget: StoreBudget;
  readonly #runs = new Map<string, StoreRun>();

  constructor(budget: StoreBudget) {
    this.#budget = budget;
  }

  join(member: StoreMember, { runId, attempt, worldSize }: JoinRunOptions): StoreRun {
    let run = this.#runs.get(runId);
    if (run !== undefined && attempt < run.attempt) {
      throw new StoreError('STORE_STALE', staleMessage(run.attempt, attempt));
    }
    if (run !== undefined && attempt > run.attempt) {
      const ended = run;
      this.#runs.delete(runId);
      for (const one of ended.members) {
        one.evict(staleMessage(attempt, ended.attempt));
      }
      ended.table.clear();
      run = undefined;
    }
    run ??= { attempt, table: new StoreTable(this.#budget), members: new Set(), worldSize };
    run.worldSize ??= worldSize;
    if (worldSize !== undefined && worldSize !== run.worldSize) {
      const text = `world size is ${run.worldSize} here, not ${worldSize}`;
      throw new StoreError('STORE_JOIN', `store: ${text}`);
    }
    this.#runs.set(runId, run);
    run.members.add(member);
    return run;
  }

  /**
   * Forgets a client. Keys outlive their clients, but a run without clients and keys is forgotten,
   * too.
   */
  leave(runId: string, run: StoreRun, member: StoreMember): void {
    run.members.delete(member);
    if (run.members.size === 0 && run.table.numKeys === 0 && this.#runs.get(runId) === run) {
      run.table.clear();
      this.#runs.delete(runId);
    }
  }
}

function staleMessage(current: number, own: number): string {
  return `store: attempt ${current} of this run has begun, this is attempt ${own}`;
}
