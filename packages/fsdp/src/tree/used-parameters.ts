// Which parameters a backward uses, and whether all ranks use the same. Ranks that don't are told
// what differs (to-fsdp-error.ts) or, where that is allowed, agree on what any of them uses.
//
// Note [what ranks compare]
// Each gather, each reduction and each end of a forward or backward carries a name as its identity,
// which ranks compare without any further message. A backward's first reduction in a group also
// carries the set of parameters that get a gradient, which is known before the first kernel, and
// the divisors of gradients. So ranks that differ always meet at calls that differ, and the error
// of that has what each rank was about to do.

import { tellFailure } from '@shardweave/collectives';
import type { Pass, Tensor } from '@shardweave/tensor-core';
import type { ShardedUnit } from '../unit/sharded-unit.js';
import { isSameReduction, type UnitLinks } from '../unit/unit-links.js';

/**
 * Whether a parameter has a gradient that is to be reduced, already or by the end of the backward.
 */
function isUsed(unit: ShardedUnit, index: number, pass: Pass): boolean {
  const { tensor } = unit.parameters[index]!;
  return pass.reached.has(tensor) || unit.gradient.sum.hasContributed(tensor);
}

/** Whether any parameter of the unit has such a gradient. */
export function usesUnit(unit: ShardedUnit, pass: Pass): boolean {
  return unit.parameters.some((_, index) => isUsed(unit, index, pass));
}

/**
 * The set of parameters that will have gradients, over the units reduced over `links`, as text:
 * each unit has a hexadecimal digit for every four parameters, whose lowest bit is the first of
 * them.
 */
export function usedText(units: readonly ShardedUnit[], pass: Pass, links: UnitLinks): string {
  return units
    .map((unit) => {
      if (!isSameReduction(unit.links!, links)) {
        return '';
      }
      let digits = '';
      for (let first = 0; first < unit.parameters.length; first += 4) {
        let digit = 0;
        for (let i = 0; i < 4 && first + i < unit.parameters.length; i++) {
          if (isUsed(unit, first + i, pass)) {
            digit |= 1 << i;
          }
        }
        digits += digit.toString(16);
      }
      return digits;
    })
    .join('.');
}

/**
 * The divisors of gradients of the units reduced over `links`: one pair, or a pair for each unit
 * where they differ.
 */
export function factorsText(units: readonly ShardedUnit[], links: UnitLinks): string {
  const pairs = units
    .filter((unit) => isSameReduction(unit.links!, links))
    .map(({ gradient: { divide } }) => `${divide.predivide} and ${divide.postdivide}`);
  return new Set(pairs).size === 1 ? pairs[0]! : pairs.join(', ');
}

/** The names of the parameters in a text of usedText. */
export function namesIn(text: string, units: readonly ShardedUnit[]): string[] {
  const digits = text.split('.');
  return units.flatMap(({ name, parameters }, unitIndex) =>
    parameters.flatMap(({ path }, index) => {
      const digit = Number.parseInt(digits[unitIndex]?.[index >> 2] ?? '0', 16);
      if (((digit >> (index & 3)) & 1) === 0) {
        return [];
      }
      return [name.endsWith(path) ? name : `${name}: ${path}`];
    }),
  );
}

/** The parameters that get a gradient, by unit; a unit without one is absent. */
export type UsedParameters = ReadonlyMap<ShardedUnit, readonly Tensor[]>;

/**
 * The parameters that any rank uses in the pass. It takes one small collective for each set of
 * ranks, in the sequence of reductions.
 */
export async function agreeOnParameters(
  units: readonly ShardedUnit[],
  pass: Pass,
): Promise<UsedParameters> {
  const agreed = new Map<ShardedUnit, readonly Tensor[]>();
  const left = new Set(units);
  const answers: Promise<void>[] = [];
  for (const unit of left) {
    const { reduceGroup, reductions, replicas } = unit.links!;
    const alike = [...left].filter((other) => isSameReduction(other.links!, unit.links!));
    for (const other of alike) {
      left.delete(other);
    }
    const isNeeded = Uint8Array.from(
      alike.flatMap((other) => other.parameters.map((_, index) => isUsed(other, index, pass))),
      Number,
    );
    const options = { dtype: 'u8', op: 'max', tag: 'used', identity: 'used parameters' } as const;
    let answer = Promise.resolve(isNeeded);
    for (const [group, order] of [
      [reduceGroup, reductions] as const,
      ...(replicas === undefined ? [] : [[replicas.group, replicas.order] as const]),
    ]) {
      if (group.worldSize === 1) {
        continue;
      }
      answer = order.enqueue(
        answer,
        async (bytes) => {
          await group.allReduce(bytes, bytes, options);
          return bytes;
        },
        { failed: (error) => tellFailure(group, 'backward', error) },
      );
    }
    answers.push(
      answer.then((bytes) => {
        let at = 0;
        for (const other of alike) {
          const leaves = other.parameters.filter((_, index) => bytes[at + index] !== 0);
          at += other.parameters.length;
          if (leaves.length > 0) {
            agreed.set(
              other,
              leaves.map(({ tensor }) => tensor),
            );
          }
        }
      }),
    );
  }
  await Promise.all(answers);
  return agreed;
}
