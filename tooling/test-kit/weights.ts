// What a model holds, in forms that tests compare.

import { toF32Array } from '@shardweave/dtypes';
import { type Module, type StateEntry, stateDict } from '@shardweave/nn';

/** Values by name, each under its first name in the bare model. */
export type Weights = ReadonlyMap<string, Float32Array>;

/** Returns whole parameters and buffers by name, whatever is wrapped. All ranks call it. */
export async function weightsOf(model: Module): Promise<Map<string, Float32Array>> {
  const entries = [...(await stateDict(model))];
  return new Map(entries.map(([name, { data, dtype }]) => [name, toF32Array(data.slice(), dtype)]));
}

/** Returns a dict as texts that show every bit, which compare faster than typed arrays. */
export function textOf(
  entries: ReadonlyMap<string, Pick<StateEntry, 'shape' | 'data'>>,
): Record<string, string> {
  return Object.fromEntries(
    [...entries].map(([name, { shape, data }]) => [
      name,
      `[${shape.join()}] ${Buffer.from(data).toString('base64')}`,
    ]),
  );
}
