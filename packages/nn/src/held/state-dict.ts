// The parameters and buffers of a model as values by name, and back, whatever wraps the model.

import type { DType, Tensor } from '@shardweave/tensor-core';
import { checkOptions, FLAG, oneOf, optional } from '../check-options.js';
import { pieceOf } from '../flat/layout/flat-plan.js';
import type { LazyTensor } from '../host-tensor.js';
import type { Module } from '../module.js';
import { restShape } from '../parameters/encoded-parameter.js';
import { expectedOf, restEntry } from './block-entries.js';
import { checkState, type ExpectedEntry } from './check-state.js';
import type { HeldCall, HeldPart } from './held.js';
import { type ModelAtRest, type Models, type NamedBuffer, whileAtRest } from './model-at-rest.js';
import { writeTensor } from './plain-parts.js';
import {
  convertBytes,
  digestOf,
  type GivenEntry,
  PartRoom,
  type StateDict,
  type StateDictPlaces,
  type StateEntry,
} from './state-entry.js';

/** Options of stateDict: which parameters have entries, and where those go. */
export interface StateDictOptions extends StateDictPlaces {
  /**
   * Frozen parameters are left out, and nothing of them alone is gathered, such as a base model
   * whose adapters are trained. Default false.
   */
  readonly onlyTrained?: boolean;
}

/** Options of lazyStateDict: which parameters have entries, and which ranks get them. */
export type LazyStateDictOptions = Pick<StateDictOptions, 'onlyTrained' | 'stateDictOnRank0Only'>;

const LAZY_RULES = { onlyTrained: optional(FLAG), stateDictOnRank0Only: optional(FLAG) };
const LOAD_RULES = { strict: optional(FLAG) };
const RULES = { ...LAZY_RULES, stateDictDevice: optional(oneOf('host', 'device')) };

/**
 * Reads all parameters and buffers, each under its first name in the bare model. Parameters have
 * the dtype in which they rest: f32 under mixed precision. Where ranks hold shards it is
 * collective, and gathers one unit at a time.
 * @throws {NnConfigError} where only a part of the model is given to it, whose values rest with a
 * wrapper around that part
 * @throws what the wrapper does during a call that has not ended
 */
export async function stateDict(
  models: Models,
  options: StateDictOptions = {},
): Promise<StateDict> {
  checkOptions('stateDict', options, RULES);
  const call: HeldCall = { operation: 'stateDict', by: 'tensors', isLoad: false };
  return whileAtRest(models, call, async (held) => {
    const { stateDictDevice, stateDictOnRank0Only: toFirst } = { ...held.places, ...options };
    const isElsewhere = toFirst && !held.ranks.isFirst;
    const found = new Map<Tensor, StateEntry>();
    for (const { part, wanted } of partsOf(held, options)) {
      const read = await part.readWhole({ toFirst });
      if (read === undefined || isElsewhere) {
        continue;
      }
      const reads = wanted.map(async (tensor) => {
        found.set(tensor, { ...specOf(tensor), data: await read(tensor) });
      });
      await Promise.all(reads);
    }
    held.requireUnchanged();
    if (isElsewhere) {
      return new Map();
    }
    const entries: StateDict = inOrder(held, found);
    for (const buffer of held.buffers) {
      entries.set(buffer.name, { ...bufferSpec(buffer), data: await readBuffer(buffer) });
    }
    const [device] = [...held.names.keys(), ...held.buffers.map(({ buffer }) => buffer)];
    return stateDictDevice === 'host' || device === undefined
      ? entries
      : new Map([...entries].map(([name, entry]) => [name, onDevice(device, entry)]));
  });
}

/**
 * Gives all parameters and buffers by name, which are read when they are asked for, with the values
 * that they have then: a model passes through the host one tensor at a time. What is sharded over
 * several ranks is gathered by this call, which is collective then, since no rank could read it
 * alone later.
 * @throws what stateDict throws; reads throw what the wrapper does during a call that has not ended
 */
export async function lazyStateDict(
  models: Models,
  options: LazyStateDictOptions = {},
): Promise<Map<string, LazyTensor<DType>>> {
  checkOptions('lazyStateDict', options, LAZY_RULES);
  const call: HeldCall = { operation: 'lazyStateDict', by: 'tensors', isLoad: false };
  return whileAtRest(models, call, async (held) => {
    const { stateDictOnRank0Only: toFirst } = { ...held.places, ...options };
    const isElsewhere = toFirst && !held.ranks.isFirst;
    const found = new Map<Tensor, LazyTensor<DType>>();
    for (const { part, wanted } of partsOf(held, options)) {
      const { readLater } = part;
      const read = readLater === undefined ? await part.readWhole({ toFirst }) : undefined;
      for (const tensor of wanted) {
        if (readLater !== undefined) {
          found.set(tensor, {
            ...specOf(tensor),
            read: () => readLater(tensor),
            readPart: (part) => readLater(tensor, part),
          });
        } else if (read !== undefined && !isElsewhere) {
          const data = await read(tensor);
          found.set(tensor, { ...specOf(tensor), read: async () => data });
        }
      }
    }
    held.requireUnchanged();
    if (isElsewhere) {
      return new Map();
    }
    const entries = inOrder(held, found);
    for (const buffer of held.buffers) {
      entries.set(buffer.name, { ...bufferSpec(buffer), read: () => readBuffer(buffer) });
    }
    return entries;
  });
}

/**
 * Sets parameters and buffers. Floats are converted to the dtype in which each rests, or encoded
 * where it rests in blocks; integers fit the same dtype alone. Names, shapes and dtypes of all are
 * checked before the first lazy tensor is read; those are read one after another, in parts where
 * they can be, and where ranks hold shards each reads only what its shards need (`readPart`). It is
 * collective where ranks hold shards, and they compare names and values, but not those of lazy
 * tensors, experts and buffers. Replicas are set each by itself. What rests in a store is
 * committed.
 * @param options.strict whether names that are missing on either side are an error. Default true
 * @throws {StateDictError} with all that is missing, unexpected or misshapen, and where ranks give
 * different values: nothing is loaded on any rank
 * @throws {StateDictError} for a lazy tensor that gives another number of bytes than its shape has;
 * in this case, and where a read fails, what was loaded before it stays
 * @throws what stateDict throws, and what a wrapper does where another rank failed
 */
export async function loadStateDict(
  models: Models,
  state: ReadonlyMap<string, GivenEntry>,
  options: { readonly strict?: boolean } = {},
): Promise<void> {
  const operation = 'loadStateDict';
  checkOptions(operation, options, LOAD_RULES);
  return whileAtRest(models, { operation, by: 'tensors', isLoad: true }, async (held) => {
    const { names, buffers, parts, ranks } = held;
    const expected = new Map<string, ExpectedEntry>(
      [...names].map(([tensor, name]) => [
        name,
        expectedOf(tensor, state.get?.(name), specOf(tensor)),
      ]),
    );
    for (const { name, buffer } of buffers) {
      expected.set(name, buffer);
    }
    await ranks.agreeOnText(operation, () => {
      checkState(state, expected, { operation, strict: options.strict ?? true });
      return ranks.isAlone ? '' : digestOf(comparedEntries(held, state));
    });
    await ranks.agree(operation, async () => {
      const room = new PartRoom();
      for (const part of parts) {
        const given = new Map(
          part.parameters.flatMap((tensor) => {
            const name = names.get(tensor) ?? '';
            const entry = state.get(name);
            return entry === undefined
              ? []
              : [[tensor, [name, restEntry(tensor, name, entry)] as const] as const];
          }),
        );
        if (given.size > 0) {
          await part.write(given, room);
        }
      }
      for (const { name, buffer } of buffers) {
        const entry = state.get(name);
        if (entry !== undefined) {
          await writeTensor(buffer, name, entry, room);
        }
      }
    });
  });
}

/** The parts that have something to give, and which of their parameters are wanted. */
function partsOf(
  { parts, names }: ModelAtRest,
  { onlyTrained = false }: { readonly onlyTrained?: boolean },
): { readonly part: HeldPart; readonly wanted: readonly Tensor[] }[] {
  const wantedOf = (part: HeldPart) =>
    part.parameters.filter((tensor) => names.has(tensor) && (!onlyTrained || tensor.requiresGrad));
  return parts
    .map((part) => ({ part, wanted: wantedOf(part) }))
    .filter(({ wanted }) => wanted.length > 0);
}

/** The entries that ranks compare: without values where each rank may have its own. */
function comparedEntries(
  { parts, names, buffers }: ModelAtRest,
  state: ReadonlyMap<string, GivenEntry>,
): [string, GivenEntry][] {
  const local = parts.flatMap((part) => (part.isShared ? [] : part.parameters));
  const own = new Set([
    ...local.map((tensor) => names.get(tensor)),
    ...buffers.map(({ name }) => name),
  ]);
  return [...state].map(([name, entry]) => {
    return [name, own.has(name) ? { ...entry, data: new Uint8Array(0) } : entry];
  });
}

/** The dtype and shape in which a parameter rests. */
function specOf(tensor: Tensor): ExpectedEntry {
  return { dtype: pieceOf(tensor).flat.dtype, shape: restShape(tensor) };
}

/** The entries in the order of the bare model. */
function inOrder<T>({ names }: ModelAtRest, found: ReadonlyMap<Tensor, T>): Map<string, T> {
  return new Map(
    [...names].flatMap(([tensor, name]) => {
      const entry = found.get(tensor);
      return entry === undefined ? [] : [[name, entry] as const];
    }),
  );
}

function bufferSpec({ buffer, dtype }: NamedBuffer): ExpectedEntry {
  return { dtype, shape: buffer.shape };
}

async function readBuffer({ buffer, dtype }: NamedBuffer): Promise<Uint8Array> {
  return convertBytes(await buffer.toBytes(), buffer.dtype, dtype);
}

function onDevice({ device }: Pick<Module, 'device'>, entry: StateEntry): StateEntry {
  const { dtype, shape, data } = entry;
  const tensor = device.tensor(data, shape, { dtype, tag: 'parameter' }).keep();
  return { dtype, shape, data: new Uint8Array(0), tensor };
}
