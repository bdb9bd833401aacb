// What ranks tell one another of an optimizer's progress with the parameters of a unit.

import { exchangeTexts } from '@shardweave/collectives';
import { StateDictError } from '@shardweave/nn';
import type { FlatProgress } from '@shardweave/nn/flat';
import { exchangeCall } from '../ranks/call-identity.js';
import type { ShardedUnit } from '../unit/sharded-unit.js';

/**
 * What one rank tells about a parameter that it has elements of: its index in the unit, its step (0
 * where it was never stepped), and the names of its state tensors.
 */
type ToldProgress = readonly [index: number, step: number, names: readonly string[]];

/**
 * The step and the state tensors of each parameter of the unit, as told by the ranks that have
 * elements of it. Collective over the unit's group.
 * @throws {StateDictError} where ranks with parts of one parameter differ
 */
export async function agreedProgress(
  unit: ShardedUnit,
  own: FlatProgress,
  operation: string,
): Promise<FlatProgress> {
  const told = unit.parameters.flatMap(({ tensor }, index): ToldProgress[] => {
    const { step, names } = own.get(tensor) ?? { step: 0, names: [] };
    return tensor.piece!.length === 0 ? [] : [[index, step, names]];
  });
  const text = JSON.stringify(told);
  const texts = await exchangeTexts(unit.group, text, exchangeCall(operation, unit.name));
  const agreed = new Map<number, string>();
  for (const [index, ...progress] of texts.flatMap((text) => JSON.parse(text) as ToldProgress[])) {
    const found = JSON.stringify(progress);
    const other = agreed.get(index) ?? found;
    if (other !== found) {
      const { path } = unit.parameters[index]!;
      throw new StateDictError(
        `optimizer state: expected one step count and the same tensors on all ranks for '${path}' of '${unit.name}', got ${other} and ${found}. Step every rank's optimizer alike.`,
      );
    }
    agreed.set(index, found);
  }
  return new Map(
    [...agreed]
      .sort(([a], [b]) => a - b)
      .flatMap(([index, text]) => {
        const [step, names] = JSON.parse(text) as [number, string[]];
        return step === 0 ? [] : [[unit.parameters[index]!.tensor, { step, names }] as const];
      }),
  );
}
