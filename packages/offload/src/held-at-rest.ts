// What nn's functions of a model's state ask of offloaded models: parameters pass between the store
// and the host, and the device takes no part.

import { type Module, StateDictError } from '@shardweave/nn';
import {
  bytesOf,
  type GivenParameters,
  type Held,
  type HeldBy,
  type HeldCall,
  type HeldPart,
  plainAtRest,
} from '@shardweave/nn/flat';
import { byteSize, type ElementRun } from '@shardweave/tensor-core';
import type { OffloadedFlat } from './slices/offloaded-flat.js';

/** An offloaded model, whose parameters rest in the flats. */
interface Offloaded extends Module {
  readonly flats: readonly OffloadedFlat[];
  whileAtRest<T>(call: string, body: () => Promise<T>): Promise<T>;
  commit(): Promise<void>;
}

/** How nn asks an offloaded model. */
export const HELD_BY_OFFLOAD: HeldBy = {
  name: 'offload',
  group: undefined,
  together: (wrappers) => ({
    whileAtRest: (call, body) => entered(wrappers as readonly Offloaded[], call, [], body),
  }),
};

/** Enters the models one after another, and commits each that was loaded. */
async function entered<T>(
  models: readonly Offloaded[],
  call: HeldCall,
  parts: readonly HeldPart[],
  body: Parameters<Held['whileAtRest']>[1],
): Promise<T> {
  const [model, ...others] = models;
  if (model === undefined) {
    return body({ ...plainAtRest([], call), parts }) as Promise<T>;
  }
  const enter = () => entered<T>(others, call, [...parts, ...partsOf(model, call)], body);
  // A pass over gradients occupies the homes where they rest by itself.
  const result =
    call.by === 'gradients' ? await enter() : await model.whileAtRest(call.operation, enter);
  if (call.isLoad) {
    await model.commit();
  }
  return result;
}

function partsOf(model: Offloaded, { operation }: HeldCall): HeldPart[] {
  const flats = new Set(model.flats.map(({ flat }) => flat));
  const foreign = model
    .namedParameters()
    .find(([, { piece }]) => piece === undefined || !flats.has(piece.flat));
  if (foreign !== undefined) {
    throw new StateDictError(
      `${operation}: expected parameters that rest in the model's store, got '${foreign[0]}', which is sharded. Call it with the sharded modules.`,
    );
  }
  return model.flats.map((flat): HeldPart => {
    return {
      parameters: flat.parameters.map(({ tensor }) => tensor),
      suffix: '',
      isShared: true,
      isWriting: true,
      readLater: (parameter, part) =>
        model.whileAtRest('lazyStateDict', () => flat.readLeaf(parameter, part)),
      readWhole: async () => (parameter) => flat.readLeaf(parameter),
      write: (given) => writeGiven(flat, given),
      dropCopies: () => {},
      agreeOnProgress: async (own) => own,
    };
  });
}

/** A store has to write the whole flat for each change, so it writes all of them at once. */
async function writeGiven(flat: OffloadedFlat, given: GivenParameters): Promise<void> {
  const { dtype } = flat.flat;
  const whole = await flat.read();
  const changed: ElementRun[] = [];
  for (const [parameter, entry] of given) {
    whole.set(await bytesOf(...entry, dtype), parameter.piece!.start * byteSize(dtype));
    changed.push({ start: parameter.offset, length: parameter.size });
  }
  await flat.write(whole, 0, changed);
}
