// The one comparison of a state with a model: nothing is loaded before all of it fits.

import { byteSize, type DType, elementCountOf, type Shape } from '@shardweave/tensor-core';
import { having, shown } from '../check-options.js';
import { StateDictError } from '../errors.js';
import { type FileDType, isConvertible } from '../host-tensor.js';
import type { GivenEntry } from './state-entry.js';

/** Makes the error of ranks that give other states than rank 0, with what to do in their place. */
export function differingState(operation: string, advice: string) {
  return (ranks: readonly number[]): StateDictError =>
    new StateDictError(
      `${operation}: expected the same names and values on all ranks, got others on rank ${ranks.join(', ')} than on rank 0. Nothing is loaded: ${advice}.`,
    );
}

const ADVICE =
  'stateDict and lazyStateDict give such a map, and so do `tensors` of readSafetensors and openSafetensors.';

/** What an entry of a state dict has to be like. */
export interface ExpectedEntry {
  readonly dtype: DType;
  readonly shape: Shape;
}

/** The call that checks a state, and how strictly names must fit. */
export interface CheckStateOptions {
  /** The name of the call in the error. */
  readonly operation: string;
  /** Whether names that are missing on either side are an error. */
  readonly strict: boolean;
}

/**
 * Compares a state with the entries that a model expects. Floats that devices have fit floats of
 * any dtype; integers fit their own dtype alone. Lazy tensors are taken to be as long as they say.
 * @throws {StateDictError} with all that is missing or unexpected, and all that does not fit: what
 * was expected and what came
 */
export function checkState(
  state: ReadonlyMap<string, GivenEntry>,
  expected: ReadonlyMap<string, ExpectedEntry>,
  { operation, strict }: CheckStateOptions,
): void {
  requireState(state, operation);
  const missing = strict ? [...expected.keys()].filter((name) => !state.has(name)) : [];
  const unexpected = strict ? [...state.keys()].filter((name) => !expected.has(name)) : [];
  const mismatched: string[] = [];
  const misfits: string[] = [];
  for (const [name, wanted] of expected) {
    const entry = state.get(name);
    if (entry === undefined || isFitting(entry, wanted)) {
      continue;
    }
    mismatched.push(name);
    misfits.push(`'${name}': expected ${textOf(wanted)}, got ${textOf(entry)}${lengthOf(entry)}`);
  }
  if (missing.length + unexpected.length + mismatched.length === 0) {
    return;
  }
  const hints = [
    ...(mismatched.length === 0
      ? []
      : ['Shapes have to be equal, floats are converted, and integers are not.']),
    ...(missing.length + unexpected.length === 0
      ? []
      : ['Load the state of this model, or with strict: false what both have.']),
  ];
  throw new StateDictError(
    `${operation}: expected the ${expected.size} entries of this model. Missing: ${missing.join(', ') || 'none'}. Unexpected: ${unexpected.join(', ') || 'none'}. Misshapen: ${misfits.join('; ') || 'none'}. ${hints.join(' ')} Nothing was loaded.`,
    { missing, unexpected, mismatched },
  );
}

const MAP = having('a map of tensors by name', 'get', 'has', 'keys');

/** @throws {StateDictError} for another shape of a state, such as a whole file's */
function requireState(state: unknown, operation: string): void {
  if (!MAP.holds(state)) {
    const hint = isObject(state) && MAP.holds(state.tensors) ? 'Give its `tensors`.' : ADVICE;
    throw new StateDictError(
      `${operation}: expected ${MAP.expected}, got ${shown(state)}. ${hint} Nothing was loaded.`,
    );
  }
  for (const [name, entry] of state as ReadonlyMap<string, unknown>) {
    const isEntry =
      isObject(entry) &&
      Array.isArray(entry.shape) &&
      (typeof entry.read === 'function' || entry.data instanceof Uint8Array);
    if (!isEntry) {
      throw new StateDictError(
        `${operation}: expected '${name}' as { dtype, shape, data }, with the bytes in data, or { dtype, shape, read }, got ${shown(entry)}. ${ADVICE} Nothing was loaded.`,
        { mismatched: [name] },
      );
    }
  }
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null;
}

function isFitting(entry: GivenEntry, { dtype, shape }: ExpectedEntry): boolean {
  const { dtype: from } = entry;
  if (!isConvertible(from, dtype) || entry.shape.join() !== shape.join()) {
    return false;
  }
  const byteLength = elementCountOf(shape) * byteSize(from);
  return (byteLengthOf(entry) ?? byteLength) === byteLength;
}

function textOf({ dtype, shape }: { dtype: FileDType; shape: Shape }): string {
  return `${dtype} [${shape.join(', ')}]`;
}

/** Says how long an entry is where its bytes are there. */
function lengthOf(entry: GivenEntry): string {
  const byteLength = byteLengthOf(entry);
  return byteLength === undefined ? '' : ` of ${byteLength} bytes`;
}

/** The bytes that an entry has; undefined for one that is read later, or is on the device. */
function byteLengthOf(entry: GivenEntry): number | undefined {
  return 'read' in entry || entry.tensor !== undefined ? undefined : entry.data.byteLength;
}
