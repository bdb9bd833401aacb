// The reductions of one backward, and what ranks compare of them.
//
// Note [order of reductions]
// A unit's reduction starts when its gradient is final, which happens in one order on all ranks as
// long as they use the same parameters. With findUnusedParameters they may not. Then the units that
// any rank uses are reduced in one fixed order, the last unit first: each starts when its gradient
// is final on this rank and all units before it in the order have started.

import type { Pass } from '@shardweave/tensor-core';
import type { ReduceScatterBucketer } from '../unit/reduce-scatter-bucketer.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { isSameReduction, type UnitLinks } from '../unit/unit-links.js';
import {
  agreeOnParameters,
  factorsText,
  type UsedParameters,
  usedText,
  usesUnit,
} from './used-parameters.js';

export class PassReductions {
  readonly pass: Pass;
  /** Whether every gradient is where it rests, or on its way into a store, which is told there. */
  isWhole = false;
  readonly #units: readonly ShardedUnit[];
  readonly #bucketer: ReduceScatterBucketer;
  /** The sets of ranks that have compared already what they use. */
  readonly #compared: UnitLinks[] = [];
  /** With findUnusedParameters: the agreement on the parameters that any rank uses, by unit. */
  readonly #agreement: Promise<UsedParameters> | undefined;
  #agreed: UsedParameters | undefined;
  readonly #final = new Set<ShardedUnit>();
  /** How many units of the order of reductions have had their turn. */
  #numTurns = 0;

  constructor(
    pass: Pass,
    tree: {
      readonly units: readonly ShardedUnit[];
      readonly bucketer: ReduceScatterBucketer;
      readonly findsUnused: boolean;
    },
  ) {
    this.pass = pass;
    this.#units = tree.units;
    this.#bucketer = tree.bucketer;
    this.#agreement = tree.findsUnused ? agreeOnParameters(tree.units, pass) : undefined;
    this.#agreement?.catch(() => undefined); // whoever awaits it sees the error
  }

  /**
   * Waits, with findUnusedParameters, until ranks agree on what the backward uses. The first of
   * those that wait calls `use` with it.
   */
  async agree(use: (agreed: UsedParameters) => void): Promise<void> {
    if (this.#agreement === undefined || this.#agreed !== undefined) {
      return;
    }
    const agreed = await this.#agreement;
    if (this.#agreed === undefined) {
      this.#agreed = agreed;
      use(agreed);
    }
  }

  /** Notes that a unit's gradient is final, and starts its reduction when it is due. */
  reduceFinal(unit: ShardedUnit): void {
    if (this.#agreement === undefined) {
      unit.gradient.startReduce(this.#bucketer);
      return;
    }
    this.#final.add(unit);
    this.#reduceInTurn();
  }

  /**
   * Starts the reductions that no final gradient has started: those of partly used units, and what
   * noSync left.
   */
  reduceLeft(): void {
    if (this.#agreement === undefined) {
      for (const unit of this.#units) {
        unit.gradient.startReduce(this.#bucketer);
      }
    } else {
      this.#reduceInTurn({ isOver: true });
    }
  }

  /**
   * Starts the agreed reductions in their order up to the first unit whose gradient is not final
   * yet. A unit that this rank's backward does not use has nothing to wait for.
   */
  #reduceInTurn(options: { readonly isOver?: boolean } = {}): void {
    if (this.#agreed === undefined) {
      return;
    }
    const order = this.#units.toReversed();
    for (; this.#numTurns < order.length; this.#numTurns++) {
      const unit = order[this.#numTurns]!;
      const leaves = this.#agreed.get(unit);
      if (leaves === undefined) {
        continue;
      }
      const isReady = options.isOver || this.#final.has(unit) || !usesUnit(unit, this.pass);
      if (!isReady) {
        return;
      }
      unit.gradient.startReduce(this.#bucketer, { leaves });
    }
  }

  /** The identity that ranks compare for a reduction. See Note [what ranks compare]. */
  identity(names: readonly string[], links: UnitLinks): string {
    const text = names.join(' + ');
    if (this.#compared.some((other) => isSameReduction(other, links))) {
      return text;
    }
    this.#compared.push(links);
    const used = this.#agreement === undefined ? usedText(this.#units, this.pass, links) : '';
    return `${text} | ${used} by ${factorsText(this.#units, links)}`;
  }
}
