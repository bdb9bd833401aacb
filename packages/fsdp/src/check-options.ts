// Checks options as plain JavaScript gives them, and says what is wrong with one:
// `fsdp: expected computeDType to be 'f32' or 'f16' or 'bf16', got "fp16".`

import { isTensor } from '@shardweave/tensor-core';
import { FsdpConfigError } from './errors.js';
import type { FsdpOptions } from './options.js';
import type { OffloadConfig } from './unit/residence.js';

/** What an option may be. */
interface OptionRule {
  /** Completes "expected bucketCapMb to be ...". */
  readonly expected: string;
  holds(value: unknown): boolean;
}

/** A rule for each option, so that none can be forgotten and others are unknown. */
type OptionRules<Options> = { readonly [Name in keyof Options]-?: OptionRule };

const FLAG: OptionRule = {
  expected: 'true or false',
  holds: (value) => typeof value === 'boolean',
};

const GROUP: OptionRule = {
  expected: 'a process group of @shardweave/collectives',
  holds: isGroup,
};

const DTYPE = oneOf('f32', 'f16', 'bf16');

const STORE: OptionRule = {
  expected: 'a ShardStore of @shardweave/shard-store',
  holds: (value) => has(value, 'read', 'write', 'commit'),
};

export const STATE_DICT_RULES = {
  stateDictDevice: oneOf('host', 'device'),
  stateDictOnRank0Only: FLAG,
} as const;

const RULES: OptionRules<FsdpOptions> = {
  ...STATE_DICT_RULES,
  processGroup: GROUP,
  processGroupReduceScatter: {
    expected: "'reduceScatter', 'default' or a process group",
    holds: (value) => value === 'reduceScatter' || value === 'default' || isGroup(value),
  },
  replicateGroup: GROUP,
  flattenParameters: {
    expected: 'true, false or groups { name, params }',
    holds: (value) => FLAG.holds(value) || (Array.isArray(value) && value.every(isParameterGroup)),
  },
  syncModuleStates: FLAG,
  reshardAfterForward: FLAG,
  disableReshardOnRoot: FLAG,
  mixedPrecision: FLAG,
  computeDType: DTYPE,
  bufferDType: DTYPE,
  forceInputToFp32: FLAG,
  fp32ReduceScatter: FLAG,
  gradientPredivideFactor: {
    expected: 'a finite number above 0',
    holds: (value) => Number.isFinite(value) && (value as number) > 0,
  },
  bucketCapMb: {
    expected: 'a number of MiB',
    holds: (value) => typeof value === 'number' && !Number.isNaN(value),
  },
  gatherCapBytes: {
    expected: 'a number of bytes of at least 0',
    holds: (value) => typeof value === 'number' && value >= 0,
  },
  noBroadcastOptimState: FLAG,
  allowResetParameters: FLAG,
  verbose: FLAG,
  findUnusedParameters: FLAG,
  name: { expected: 'a text', holds: (value) => typeof value === 'string' },
  moveParamsToCpu: FLAG,
  moveGradsToCpu: FLAG,
  offloadConfig: { expected: 'an object { store, resume }', holds: (value) => has(value) },
};

const OFFLOAD_RULES: OptionRules<OffloadConfig> = { store: STORE, resume: FLAG };

/** Options that fairscale and PyTorch have, and what stands for them here. */
const ANSWERS: Readonly<Record<string, string>> = {
  computeDevice: "A module's device is where it computes.",
  clearAutocastCache: 'Nothing casts by ambient mode.',
  shardingStrategy: 'Use reshardAfterForward, and replicateGroup for hybrid sharding.',
  cpuOffload: 'Use moveParamsToCpu.',
  autoWrapPolicy: 'Use autoWrap(module, policy, wrap).',
  backwardPrefetch: 'Gathers start ahead as far as gatherCapBytes allows.',
  forwardPrefetch: 'Gathers start ahead as far as gatherCapBytes allows.',
  limitAllGathers: 'Use gatherCapBytes.',
  useOrigParams: 'Names and parameter groups are always those of the bare module.',
  paramInitFn: "Use nn's deferInit.",
  deviceId: 'A module has one device.',
};

/** @throws {FsdpConfigError} for what is no object, an unknown option, and one that breaks its rule */
export function checkFsdpOptions(options: unknown): void {
  checkOptions('fsdp', options, { rules: RULES, required: ['processGroup'] });
  const { offloadConfig } = options as Partial<FsdpOptions>;
  if (offloadConfig === undefined) {
    return;
  }
  checkOptions('fsdp: offloadConfig', offloadConfig, { rules: OFFLOAD_RULES, required: ['store'] });
}

/** As checkFsdpOptions, for the options of a call. */
export function checkOptions(
  owner: string,
  options: unknown,
  {
    rules,
    required = [],
  }: {
    readonly rules: Readonly<Record<string, OptionRule>>;
    readonly required?: readonly string[];
  },
): void {
  if (!has(options)) {
    throw new FsdpConfigError(
      `${owner}: expected an object of options (${Object.keys(rules).join(', ')}), got ${shown(options)}.`,
    );
  }
  for (const [name, value] of Object.entries(options as object)) {
    if (value !== undefined && !Object.hasOwn(rules, name)) {
      throw unknownOption(owner, name, rules);
    }
  }
  for (const [name, rule] of Object.entries(rules)) {
    const value = (options as Readonly<Record<string, unknown>>)[name];
    if (value === undefined ? !required.includes(name) : rule.holds(value)) {
      continue;
    }
    throw new FsdpConfigError(
      `${owner}: expected ${name} to be ${rule.expected}, got ${shown(value)}.`,
    );
  }
}

function unknownOption(
  owner: string,
  name: string,
  rules: Readonly<Record<string, OptionRule>>,
): FsdpConfigError {
  const known = Object.keys(rules);
  const camel = name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
  const [nearest] = known
    .map((option) => ({ option, distance: distanceOf(camel.toLowerCase(), option.toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance);
  // A third of the letters wrong is another word.
  const isNear = nearest !== undefined && nearest.distance * 3 <= nearest.option.length;
  const hint =
    ANSWERS[camel] ?? (isNear ? `Use ${nearest.option}.` : `Known ones: ${known.join(', ')}.`);
  return new FsdpConfigError(`${owner}: expected known options, got '${name}'. ${hint}`);
}

/** Letters to add, drop or change (Levenshtein). */
function distanceOf(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (const [i, letter] of [...a].entries()) {
    const next = [i + 1];
    for (const [j, other] of [...b].entries()) {
      const changed = row[j]! + Number(letter !== other);
      next.push(Math.min(changed, row[j + 1]! + 1, next[j]! + 1));
    }
    row = next;
  }
  return row[b.length]!;
}

function oneOf(...values: readonly string[]): OptionRule {
  return {
    expected: values.map((value) => `'${value}'`).join(' or '),
    holds: (value) => values.includes(value as string),
  };
}

function has(value: unknown, ...methods: readonly string[]): boolean {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    methods.every((name) => typeof Reflect.get(value, name) === 'function')
  );
}

function isGroup(value: unknown): boolean {
  return has(value, 'allGather', 'reduceScatter', 'split');
}

function isParameterGroup(value: unknown): boolean {
  const { name, params } = (value ?? {}) as { readonly name?: unknown; readonly params?: unknown };
  return typeof name === 'string' && Array.isArray(params) && params.every(isTensor);
}

function shown(value: unknown): string {
  if (value === undefined) {
    return 'nothing';
  }
  if (typeof value === 'string') {
    return JSON.stringify(value);
  }
  if (typeof value === 'function') {
    return 'a function';
  }
  if (typeof value !== 'object' || value === null) {
    return String(value);
  }
  return Array.isArray(value) ? 'an array' : 'an object';
}
