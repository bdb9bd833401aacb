// The options of OffloadModel, and what follows from them.

import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import type { DType } from '@shardweave/tensor-core';
import { OffloadConfigError } from './errors.js';
import { nearestName } from './nearest-name.js';

export interface OffloadOptions {
  /**
   * Where parameters, gradients and optimizer state rest. Default host memory; openDiskStore of
   * @shardweave/shard-store/node keeps them on disk. The caller closes what it passes.
   */
  readonly store?: ShardStore;
  /** Goes on from what the store has under these names in place of the model's values. Default false. */
  readonly resume?: boolean;
  /**
   * Slices to cut a Sequential into, balanced by parameters. Default 3; at most one a layer. A list of
   * modules is cut already.
   */
  readonly numSlices?: number;
  /** Keep only what lies between slices and run each again in backward. Default false. */
  readonly checkpointActivation?: boolean;
  /** Rows are cut into this many parts, which pass each slice one after the other. Default 1. */
  readonly numMicrobatches?: number;
  /** Parameters are computed with in this dtype, from f32 masters. Default f32. */
  readonly computeDType?: 'f32' | 'f16' | 'bf16';
  /**
   * Most bytes that the device's pool may hold, all that is on the device included. Slices are chosen
   * for it at the first call; numSlices is then not given. Default no limit.
   */
  readonly deviceBudgetBytes?: number;
  /** Bytes on the host on their way to the device before they are used. Default 256 MiB. */
  readonly loadAheadBytes?: number;
  /** Names the parameters in the store. Default 'offload'. */
  readonly name?: string;
}

// A slice or two of what fits a browser tab; a slice in demand may pass it.
const DEFAULT_LOAD_AHEAD_BYTES = 256 * 2 ** 20;

export interface ResolvedOffloadOptions {
  readonly store: ShardStore;
  readonly resume: boolean;
  readonly numSlices: number;
  readonly checkpointActivation: boolean;
  readonly numMicrobatches: number;
  readonly computeDType: DType;
  readonly deviceBudgetBytes: number | undefined;
  readonly loadAheadBytes: number;
  readonly name: string;
}

const COMPUTE_DTYPES: readonly string[] = ['f32', 'f16', 'bf16'];

const KNOWN = [
  'store',
  'resume',
  'numSlices',
  'checkpointActivation',
  'numMicrobatches',
  'computeDType',
  'deviceBudgetBytes',
  'loadAheadBytes',
  'name',
] as const satisfies (keyof OffloadOptions)[];

/** Options of fairscale and of others, and what stands for them here. */
const ANSWERS: Readonly<Record<string, string>> = {
  device: "The model's own device is used.",
  offloadDevice: 'Use store: it says where parameters rest.',
  optimizer: 'Make the optimizer on model.parameters().',
};

/** What each option may be; undefined stands for its default. */
const CHECKS: readonly [name: keyof OffloadOptions, what: string, isFit: (x: never) => boolean][] =
  [
    ['store', 'a ShardStore', isStore],
    ['resume', 'true or false', isBoolean],
    ['numSlices', 'a whole number of at least 1', isCount],
    ['checkpointActivation', 'true or false', isBoolean],
    ['numMicrobatches', 'a whole number of at least 1', isCount],
    ['computeDType', `one of ${COMPUTE_DTYPES.join(', ')}`, (x) => COMPUTE_DTYPES.includes(x)],
    ['deviceBudgetBytes', 'a number above 0', (x) => typeof x === 'number' && x > 0],
    ['loadAheadBytes', 'a number of at least 0', (x) => typeof x === 'number' && x >= 0],
    // A slash ends a flat parameter's name in the store.
    ['name', "text without '/'", (x: unknown) => typeof x === 'string' && /^[^/]+$/.test(x)],
  ];

/**
 * Fills in defaults.
 * @throws {OffloadConfigError} for options that are unknown, out of range or in contradiction
 */
export function resolveOptions(options: OffloadOptions): ResolvedOffloadOptions {
  if (typeof options !== 'object' || options === null) {
    throw new OffloadConfigError(`offload: expected an object of options, got ${textOf(options)}.`);
  }
  requireKnown(options);
  for (const [name, what, isFit] of CHECKS) {
    const value = options[name] as never;
    if (value === undefined || isFit(value)) {
      continue;
    }
    const hint = (value as unknown) instanceof Promise ? ' Await it.' : '';
    throw new OffloadConfigError(
      `offload: expected ${name} to be ${what}, got ${textOf(value)}.${hint}`,
    );
  }
  const { deviceBudgetBytes } = options;
  if (deviceBudgetBytes !== undefined && options.numSlices !== undefined) {
    throw new OffloadConfigError(
      'offload: expected either numSlices or deviceBudgetBytes, got both. The budget decides how many slices there are.',
    );
  }
  return {
    store: options.store ?? createHostStore(),
    resume: options.resume ?? false,
    numSlices: options.numSlices ?? 3,
    checkpointActivation: options.checkpointActivation ?? false,
    numMicrobatches: options.numMicrobatches ?? 1,
    computeDType: options.computeDType ?? 'f32',
    deviceBudgetBytes,
    loadAheadBytes: options.loadAheadBytes ?? DEFAULT_LOAD_AHEAD_BYTES,
    name: options.name ?? 'offload',
  };
}

function requireKnown(options: OffloadOptions): void {
  for (const [key, value] of Object.entries(options)) {
    if ((KNOWN as readonly string[]).includes(key) || value === undefined) {
      continue;
    }
    const camel = key.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
    const nearest = nearestName(key, KNOWN);
    const meant = nearest === undefined ? undefined : `Did you mean ${nearest}?`;
    throw new OffloadConfigError(
      `offload: expected options of OffloadOptions, got '${key}'. ${ANSWERS[camel] ?? meant ?? `Known ones: ${KNOWN.join(', ')}.`}`,
    );
  }
}

function isStore(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) {
    return false;
  }
  const store = value as Partial<Record<keyof ShardStore, unknown>>;
  return [store.read, store.write, store.commit].every((method) => typeof method === 'function');
}

function isBoolean(value: unknown): boolean {
  return typeof value === 'boolean';
}

function isCount(value: unknown): boolean {
  return Number.isInteger(value) && (value as number) >= 1;
}

function textOf(value: unknown): string {
  if (value instanceof Promise) {
    return 'a promise';
  }
  if (typeof value === 'string') {
    return `'${value}'`;
  }
  return typeof value === 'object' && value !== null ? 'another object' : String(value);
}
